//! How a node reaches others: HTTP over TCP in the product, frames over a simulated network in the simulation.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long the making of a connection may take that only shows whether somebody is there.
const CONNECT: Duration = Duration::from_millis(300);

/// One request.
#[derive(Debug, Clone)]
pub struct Outbound {
    pub method: Method,
    /// `http://host:port/path?query`
    pub url: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: Bytes,
    /// For the exchange as a whole.
    pub deadline: Duration,
}

/// Its answer.
#[derive(Debug, Clone)]
pub struct Inbound {
    pub status: StatusCode,
    pub body: Bytes,
}

/// No answer, with the reason in words.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{why}")]
pub struct NoAnswer {
    /// False: the connection could not be made, and nothing was sent.
    pub connected: bool,
    /// For want of time, whether or not there was a connection.
    pub timed_out: bool,
    pub why: String,
}

/// What a fresh connection shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Knock {
    Accepted,
    /// Refused by every address of the name.
    Refused,
    /// Proves nothing; why.
    Unknown(String),
}

/// See the file's head. An authority is `host:port`.
pub trait Transport: Send + Sync + 'static {
    fn exchange(&self, request: Outbound) -> BoxFuture<'_, Result<Inbound, NoAnswer>>;

    /// Whether somebody takes connections there.
    fn knock<'a>(&'a self, authority: &'a str) -> BoxFuture<'a, Knock>;

    /// Makes a connection and returns when it ends: a dying process closes it at once.
    fn hold<'a>(&'a self, authority: &'a str) -> BoxFuture<'a, ()>;
}

/// HTTP with one pool of connections for all peers.
pub(crate) struct Http(reqwest::Client);

impl Http {
    pub fn new() -> Result<Self, reqwest::Error> {
        // Only the first provider of a process counts; main may have installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .no_proxy()
            .tcp_nodelay(true)
            .connect_timeout(Duration::from_secs(1))
            .pool_idle_timeout(Duration::from_secs(60))
            .build()?;
        Ok(Self(client))
    }
}

impl Transport for Http {
    fn exchange(&self, request: Outbound) -> BoxFuture<'_, Result<Inbound, NoAnswer>> {
        Box::pin(async move {
            let Outbound { method, url, headers, body, deadline } = request;
            let mut request = self.0.request(method, url).timeout(deadline).body(body);
            for (name, value) in headers {
                request = request.header(name, value);
            }
            let response = request.send().await.map_err(|error| no_answer(&error))?;
            let status = response.status();
            let body = response.bytes().await.map_err(|error| no_answer(&error))?;
            Ok(Inbound { status, body })
        })
    }

    fn knock<'a>(&'a self, authority: &'a str) -> BoxFuture<'a, Knock> {
        Box::pin(async move {
            let addresses: Vec<SocketAddr> = match timeout(CONNECT, tokio::net::lookup_host(authority)).await {
                Ok(Ok(addresses)) => addresses.collect(),
                Ok(Err(error)) => return Knock::Unknown(format!("{authority} does not resolve: {error}")),
                Err(_) => return Knock::Unknown(format!("{authority} does not resolve in time")),
            };
            if addresses.is_empty() {
                return Knock::Unknown(format!("{authority} has no address"));
            }
            for address in addresses {
                match timeout(CONNECT, TcpStream::connect(address)).await {
                    Ok(Ok(_)) => return Knock::Accepted,
                    Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
                    Ok(Err(error)) => return Knock::Unknown(format!("{address}: {error}")),
                    Err(_) => return Knock::Unknown(format!("{address} does not answer")),
                }
            }
            Knock::Refused
        })
    }

    fn hold<'a>(&'a self, authority: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let dialled = timeout(Duration::from_secs(1), TcpStream::connect(authority)).await;
            let Ok(Ok(mut stream)) = dialled else { return };
            let mut byte = [0; 1];
            // The listener never speaks first; whatever comes means that the line is over.
            let _ = stream.read(&mut byte).await;
        })
    }
}

fn no_answer(error: &reqwest::Error) -> NoAnswer {
    NoAnswer { connected: !error.is_connect(), timed_out: error.is_timeout(), why: chain(error) }
}

/// An error with its causes: reqwest's own text names only the address.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
