//! Sockets: bound before anything starts, listened to when their time has come, dialled with a deadline.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use highwater_quorum::image::Endpoint;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::config::ListenerConfig;
use crate::error::DataPlaneError;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1_024;

/// A listener that has its address but takes no connection yet: until it listens, dialling it is refused (R28).
pub struct Bound {
    pub name: String,
    pub address: SocketAddr,
    /// What others are told.
    pub advertised: Endpoint,
    socket: TcpSocket,
}

impl Bound {
    /// Takes the address.
    ///
    /// # Errors
    /// It is in use, or none of this machine's.
    pub fn bind(config: &ListenerConfig) -> Result<Self, DataPlaneError> {
        let bind = || -> io::Result<(TcpSocket, SocketAddr)> {
            let socket = if config.bind.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            socket.set_reuseaddr(true)?;
            socket.bind(config.bind)?;
            let address = socket.local_addr()?;
            Ok((socket, address))
        };
        let (socket, address) = bind().map_err(|source| DataPlaneError::Bind {
            name: config.name.clone(),
            address: config.bind,
            source: Arc::new(source),
        })?;
        let advertised = config.advertised.clone().map_or_else(
            || Endpoint { host: address.ip().to_string(), port: address.port() },
            |told| Endpoint { port: if told.port == 0 { address.port() } else { told.port }, ..told },
        );
        Ok(Self { name: config.name.clone(), address, advertised, socket })
    }

    /// Opens the door. Must be called on the runtime that will accept.
    ///
    /// # Errors
    /// Another process listens there.
    pub fn listen(self) -> Result<TcpListener, DataPlaneError> {
        let (name, address) = (self.name, self.address);
        self.socket.listen(BACKLOG).map_err(|source| DataPlaneError::Bind { name, address, source: Arc::new(source) })
    }
}

/// Connects to a peer.
///
/// # Errors
/// `TimedOut` after `timeout`; else what the last address tried said.
pub async fn dial(to: &Endpoint, timeout: Duration) -> io::Result<TcpStream> {
    let connect = TcpStream::connect((to.host.as_str(), to.port));
    let stream =
        tokio::time::timeout(timeout, connect).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Whether an error on a connection to a peer suggests that its process is gone (D7). Silence does not.
pub fn suggests_death(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof
    )
}
