//! Proof of death (D7): what a fresh connection to a node's controller listener says about its process.

use std::time::Duration;

use highwater_wire::{BrokerId, IncarnationId};

use super::network::get_json;
use super::transport::{Knock, Transport};
use crate::status::ProbeAnswer;

/// Between the two rounds of refusals.
const APART: Duration = Duration::from_millis(50);
const ANSWER: Duration = Duration::from_millis(500);

/// Whose death is to be proved.
#[derive(Debug, Clone)]
pub(crate) struct Suspect {
    pub node: BrokerId,
    pub url: String,
    /// The process thought dead; `None`: any that answers there lives.
    pub incarnation: Option<IncarnationId>,
    pub cluster_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// With the evidence, for the history.
    Dead(String),
    Alive,
    /// A time-out, another error, somebody else: proves nothing.
    Unknown(String),
}

/// `host:port` of `http://host:port[/]`.
pub(crate) fn authority(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
    rest.split('/').next().filter(|authority| !authority.is_empty())
}

/// Only a refusal by every address, twice, 50 ms apart, or another process of the same node proves death.
pub(crate) async fn prove(transport: &dyn Transport, suspect: &Suspect) -> Verdict {
    let Some(authority) = authority(&suspect.url) else {
        return Verdict::Unknown(format!("{:?} is no address", suspect.url));
    };
    for round in 0..2 {
        if round > 0 {
            tokio::time::sleep(APART).await;
        }
        match transport.knock(authority).await {
            Knock::Accepted => return ask(transport, suspect).await,
            Knock::Refused => {}
            Knock::Unknown(why) => return Verdict::Unknown(why),
        }
    }
    Verdict::Dead(format!("connection refused twice by {authority}, {} ms apart", APART.as_millis()))
}

/// Somebody listens there: who?
async fn ask(transport: &dyn Transport, suspect: &Suspect) -> Verdict {
    let answer: ProbeAnswer = match get_json(transport, format!("{}/probe", suspect.url), ANSWER).await {
        Ok(answer) => answer,
        Err(why) => return Verdict::Unknown(why),
    };
    let same_cluster = match (&answer.cluster_id, &suspect.cluster_id) {
        (Some(theirs), Some(ours)) => theirs == ours,
        // A process that has not learned its cluster yet, or a cluster that is being formed.
        _ => true,
    };
    if answer.node != suspect.node || !same_cluster {
        return Verdict::Unknown(format!("node {} answers at {}", answer.node, suspect.url));
    }
    match suspect.incarnation {
        Some(incarnation) if incarnation != answer.incarnation => {
            Verdict::Dead(format!("another process of it answers at {}", suspect.url))
        }
        _ => Verdict::Alive,
    }
}

/// Holds a connection to a controller listener open and returns when it ends: a dying process closes it at once.
pub(crate) async fn lifeline(transport: &dyn Transport, url: &str) {
    if let Some(authority) = authority(url) {
        transport.hold(authority).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::super::transport::Http;
    use super::*;

    #[tokio::test]
    async fn a_closed_port_proves_death_and_a_silent_one_nothing() {
        let http = Http::new().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let suspect = Suspect { node: BrokerId(1), url, incarnation: None, cluster_id: None };
        let verdict = prove(&http, &suspect).await;
        assert!(matches!(verdict, Verdict::Unknown(_)), "accepted but silent: {verdict:?}");
        let address = listener.local_addr().unwrap();
        drop(listener);
        // A child of another test, between fork and exec, may still hold it.
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        let verdict = prove(&http, &suspect).await;
        assert!(matches!(verdict, Verdict::Dead(_)), "refused: {verdict:?}");
    }

    #[test]
    fn an_authority_is_cut_out_of_a_url() {
        assert_eq!(authority("http://n1:9093"), Some("n1:9093"));
        assert_eq!(authority("http://[::1]:9093/"), Some("[::1]:9093"));
        assert_eq!(authority("n1:9093"), None);
    }
}
