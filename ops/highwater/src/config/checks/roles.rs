//! What a process does, and how it finds the quorum: the checks that depend on `process.roles`.

use highwater_quorum::image::Endpoint;
use highwater_wire::BrokerId;

use super::super::values::Values;
use super::super::{Listener, Roles};

pub(super) const BOOTSTRAP: &str = "controller.quorum.bootstrap.servers";

pub(super) fn roles(values: &mut Values) -> Roles {
    const KEY: &str = "process.roles";
    let given = values.list(KEY);
    for role in &given {
        if role != "broker" && role != "controller" {
            values.refuse(KEY, format!("{KEY}: \"{role}\" is neither broker nor controller"));
        }
    }
    let has = |role: &str| given.iter().any(|given| given == role);
    let roles = Roles { broker: has("broker"), controller: has("controller") };
    if given.is_empty() {
        values.refuse(KEY, format!("{KEY} is empty: name broker, controller or both"));
    }
    roles
}

/// `host:port`, comma separated.
pub(super) fn bootstrap(values: &mut Values) -> Vec<Endpoint> {
    let mut servers = Vec::new();
    for text in values.list(BOOTSTRAP) {
        let parsed = text.rsplit_once(':').and_then(|(host, port)| {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            (!host.is_empty()).then_some(Endpoint { host: host.to_owned(), port: port.parse().ok()? })
        });
        match parsed {
            Some(endpoint) => servers.push(endpoint),
            None => values.refuse(BOOTSTRAP, format!("{BOOTSTRAP}: \"{text}\" is not host:port")),
        }
    }
    servers
}

pub(super) fn no_controller_listener(roles: Roles, name: Option<&str>) -> String {
    let name = name.unwrap_or("CONTROLLER");
    if roles.controller {
        format!(
            "listeners has no {name}: raft and the other nodes' calls need a listener of their own, such as \
             {name}://:9093"
        )
    } else {
        format!(
            "listeners has no {name}: unlike Kafka's, a broker without the controller role needs it too, because the \
             controllers push the metadata to it; add one such as {name}://:9093"
        )
    }
}

/// As Kafka: a controller serves no clients.
pub(super) fn no_client_listeners(values: &mut Values, kafka: &[Listener]) {
    for listener in kafka {
        let text = format!(
            "listeners: with process.roles=controller {} serves nobody: remove it, or add the broker role",
            listener.name
        );
        values.refuse("listeners", text);
    }
}

pub(super) fn no_way_to_the_quorum() -> String {
    format!(
        "controller.quorum.voters is missing: a broker without the controller role finds the quorum by it \
         (id@host:port,...) or by {BOOTSTRAP} (host:port,...)"
    )
}

pub(super) fn not_a_voter(node_id: BrokerId) -> String {
    format!(
        "controller.quorum.voters does not list this node ({node_id}): with the controller role it must be a voter; \
         one that is to be added to a cluster that exists is started with {BOOTSTRAP}"
    )
}

pub(super) fn voter_without_role(node_id: BrokerId) -> String {
    format!(
        "controller.quorum.voters lists this node ({node_id}), which has no controller role and cannot vote: add the \
         role or remove the node from the list"
    )
}
