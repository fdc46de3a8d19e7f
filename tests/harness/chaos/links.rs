//! A proxy on every link between two nodes: bytes that come late, connections that nobody is at the other end of any more,
//! resets in the middle of a frame, refusals.
//!
//! A node finds the others by name, and its namespace says that a name is an address of its own, where the proxy for that
//! link listens. The proxies of a node live in its namespace, on a thread of their own, so that what they send comes from
//! that node and the cuts of [`super::fleet::Cut`] hold for it. A proxy takes a connection before it knows whether its
//! target does: with proxies, a death is noticed by its session, not by a refusal.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What a connection holds at most that has not been passed on.
const QUEUE_BYTES_MAX: usize = 1 << 20;
const CONNECT: Duration = Duration::from_secs(2);

/// How a link behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Open,
    /// Bytes arrive so much later, in both directions.
    Late(Duration),
    /// Nothing is passed on, and nobody is told; so it stays for connections of this time when it is over.
    HalfOpen,
    /// Every connection is reset once so many bytes of an answer or a request have passed.
    ResetAfter(usize),
    /// Connections are reset, new ones are refused.
    Refuse,
}

/// From one node to another, and to which port.
pub type LinkId = (u8, u8, u16);

/// Where a node's proxy to another listens.
fn address(to: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, to)
}

/// How nodes are called.
pub fn name(node: u8) -> String {
    format!("n{node}")
}

/// The proxies of all nodes. Dropped: they are gone.
pub struct Links {
    modes: BTreeMap<LinkId, watch::Sender<Mode>>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
    hosts: Vec<PathBuf>,
}

impl Links {
    /// One for each of `ports` of every pair. `nodes`: namespace and address of each, from node 1 on.
    ///
    /// # Panics
    /// Without the right to enter a namespace (root).
    pub fn make(nodes: &[(String, Ipv4Addr)], ports: &[u16]) -> Self {
        let (stop, stopped) = watch::channel(false);
        let mut links = Self { modes: BTreeMap::new(), stop, threads: Vec::new(), hosts: Vec::new() };
        let numbered = || (1_u8..).zip(nodes);
        for (from, (namespace, own)) in numbered() {
            let mut hosts = format!("127.0.0.1 localhost\n{own} {}\n", name(from));
            let mut mine = Vec::new();
            for (to, (_, target)) in numbered().filter(|(to, _)| *to != from) {
                hosts.push_str(&format!("{} {}\n", address(to), name(to)));
                for &port in ports {
                    let (mode, changes) = watch::channel(Mode::Open);
                    links.modes.insert((from, to, port), mode);
                    mine.push((SocketAddr::from((address(to), port)), SocketAddr::from((*target, port)), changes));
                }
            }
            // `ip netns exec` puts it in the place of /etc/hosts.
            let folder = PathBuf::from("/etc/netns").join(namespace);
            let written = fs::create_dir_all(&folder).and_then(|()| fs::write(folder.join("hosts"), hosts));
            written.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
            links.hosts.push(folder);
            let (namespace, stopped) = (namespace.clone(), stopped.clone());
            links.threads.push(std::thread::spawn(move || run(&namespace, mine, stopped)));
        }
        links
    }

    /// What these links do from now on.
    pub fn set(&self, links: &[LinkId], mode: Mode) {
        for id in links {
            self.modes[id].send_replace(mode);
        }
    }

    /// All links between a node and others, in both directions, to these ports.
    pub fn around(node: u8, others: &[u8], ports: &[u16]) -> Vec<LinkId> {
        let pairs = others.iter().flat_map(|&other| [(node, other), (other, node)]);
        pairs.flat_map(|(from, to)| ports.iter().map(move |&port| (from, to, port))).collect()
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        for folder in &self.hosts {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Where a proxy listens, what is behind it, how it is to behave.
type Proxy = (SocketAddr, SocketAddr, watch::Receiver<Mode>);

/// The proxies of one node, in its namespace.
fn run(namespace: &str, links: Vec<Proxy>, mut stopped: watch::Receiver<bool>) {
    let file = File::open(format!("/run/netns/{namespace}")).expect("a namespace that was just made");
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter a namespace");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async move {
        let mut tasks = JoinSet::new();
        for (at, target, changes) in links {
            tasks.spawn(listen(at, target, changes));
        }
        let _ = stopped.wait_for(|stopped| *stopped).await;
    });
}

async fn listen(at: SocketAddr, target: SocketAddr, mut mode: watch::Receiver<Mode>) {
    loop {
        if mode.wait_for(|mode| *mode != Mode::Refuse).await.is_err() {
            return;
        }
        let Ok(listener) = TcpListener::bind(at).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        loop {
            tokio::select! {
                taken = listener.accept() => {
                    if let Ok((near, _)) = taken {
                        tokio::spawn(carry(near, target, mode.clone()));
                    }
                }
                refused = refuses(mode.clone()) => match refused {
                    true => break,
                    false => return,
                },
            }
        }
    }
}

/// Waits until a link refuses; false: it is gone.
async fn refuses(mut mode: watch::Receiver<Mode>) -> bool {
    mode.wait_for(|mode| *mode == Mode::Refuse).await.is_ok()
}

/// A connection is over before both sides had ended.
struct Reset;

impl From<io::Error> for Reset {
    fn from(_: io::Error) -> Self {
        Self
    }
}

/// Both directions of one connection, until both have ended in order or one was reset.
async fn carry(mut near: TcpStream, target: SocketAddr, mode: watch::Receiver<Mode>) {
    let far = tokio::time::timeout(CONNECT, TcpStream::connect(target)).await;
    let Ok(Ok(mut far)) = far else {
        let _ = near.set_zero_linger();
        return;
    };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let ended = {
        let ((near_read, near_write), (far_read, far_write)) = (near.split(), far.split());
        tokio::try_join!(pump(near_read, far_write, mode.clone()), pump(far_read, near_write, mode))
    };
    if ended.is_err() {
        let _ = (near.set_zero_linger(), far.set_zero_linger());
    }
}

/// One direction.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut modes: watch::Receiver<Mode>,
) -> Result<(), Reset> {
    let mut queue: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let (mut queued, mut passed, mut ended) = (0, 0, false);
    // A connection that was half open stays so.
    let mut dead = false;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let mode = *modes.borrow_and_update();
        dead |= mode == Mode::HalfOpen;
        if mode == Mode::Refuse {
            return Err(Reset);
        }
        if ended && queue.is_empty() && !dead {
            to.shutdown().await?;
            return Ok(());
        }
        let due = queue.front().map(|(due, _)| *due);
        tokio::select! {
            changed = modes.changed() => {
                if changed.is_err() {
                    return Err(Reset);
                }
            }
            read = from.read(&mut buffer), if !ended && queued < QUEUE_BYTES_MAX => {
                let count = read?;
                ended = count == 0;
                if dead || ended {
                    continue;
                }
                let bytes = buffer[..count].to_vec();
                if let Mode::ResetAfter(most) = mode
                    && passed + count > most
                {
                    to.write_all(&bytes[..most.saturating_sub(passed)]).await?;
                    return Err(Reset);
                }
                passed += count;
                queued += count;
                let late = if let Mode::Late(time) = mode { time } else { Duration::ZERO };
                queue.push_back((Instant::now() + late, bytes));
            }
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                if let Some((_, bytes)) = queue.pop_front() {
                    queued -= bytes.len();
                    if !dead {
                        to.write_all(&bytes).await?;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A proxy in this namespace, and what is behind it: it sends back what it gets.
    async fn proxied() -> (SocketAddr, watch::Sender<Mode>) {
        let behind = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let target = behind.local_addr().expect("bound");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = behind.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        let free = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = free.local_addr().expect("bound");
        drop(free);
        let (mode, changes) = watch::channel(Mode::Open);
        tokio::spawn(listen(at, target, changes));
        while TcpStream::connect(at).await.is_err() {
            tokio::task::yield_now().await;
        }
        (at, mode)
    }

    async fn echo(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<Vec<u8>> {
        stream.write_all(bytes).await?;
        let mut back = vec![0; bytes.len()];
        stream.read_exact(&mut back).await.map(|_| back)
    }

    #[tokio::test]
    async fn bytes_pass_and_come_late_in_both_directions() {
        let (at, mode) = proxied().await;
        let mut stream = TcpStream::connect(at).await.expect("it listens");
        assert_eq!(echo(&mut stream, b"at once").await.expect("passes"), b"at once");
        let late = Duration::from_millis(80);
        mode.send_replace(Mode::Late(late));
        let began = Instant::now();
        assert_eq!(echo(&mut stream, b"late").await.expect("passes"), b"late");
        assert!(began.elapsed() >= 2 * late, "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_half_open_connection_says_nothing_even_after_the_fault() {
        let (at, mode) = proxied().await;
        let mut stream = TcpStream::connect(at).await.expect("it listens");
        assert_eq!(echo(&mut stream, b"before").await.expect("passes"), b"before");
        mode.send_replace(Mode::HalfOpen);
        let silence = tokio::time::timeout(Duration::from_millis(100), echo(&mut stream, b"lost")).await;
        assert!(silence.is_err());
        mode.send_replace(Mode::Open);
        let silence = tokio::time::timeout(Duration::from_millis(100), echo(&mut stream, b"lost too")).await;
        assert!(silence.is_err());
        let mut fresh = TcpStream::connect(at).await.expect("it listens");
        assert_eq!(echo(&mut fresh, b"after").await.expect("passes"), b"after");
    }

    #[tokio::test]
    async fn a_connection_is_reset_in_the_middle_of_what_it_carries() {
        let (at, mode) = proxied().await;
        mode.send_replace(Mode::ResetAfter(4));
        let mut stream = TcpStream::connect(at).await.expect("it listens");
        let error = echo(&mut stream, b"eight---").await.expect_err("reset");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn a_refusing_link_resets_what_there_is_and_takes_nothing_new() {
        let (at, mode) = proxied().await;
        let mut stream = TcpStream::connect(at).await.expect("it listens");
        assert_eq!(echo(&mut stream, b"before").await.expect("passes"), b"before");
        mode.send_replace(Mode::Refuse);
        assert!(echo(&mut stream, b"lost").await.is_err());
        while TcpStream::connect(at).await.is_ok() {
            tokio::task::yield_now().await;
        }
        mode.send_replace(Mode::Open);
        while TcpStream::connect(at).await.is_err() {
            tokio::task::yield_now().await;
        }
    }
}
