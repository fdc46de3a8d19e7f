//! HTTP-shaped exchanges as frames over the simulated network: one connection each, served by the product's own routes.
//!
//! Requests may come late or twice. What a cut drops is never refused: the other side stays silent, as in a real network.

use std::future::pending;
use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use futures::future::BoxFuture;
use highwater_quorum::sim::{Inbound, Knock, NoAnswer, Outbound, Transport, granted, installed, may_come_twice};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};
use tower::ServiceExt as _;
use turmoil::net::{TcpListener, TcpStream};

use crate::marks::Mark;
use crate::rng::Rng;
use crate::world::{Down, World};

/// Of every node's controller listener.
pub const PORT: u16 = 9093;
/// As the real client's.
const CONNECT: Duration = Duration::from_secs(1);
const KNOCK: Duration = Duration::from_millis(300);
/// A request that comes late or twice does so within this.
const LATE_MS: u64 = 4_000;
/// Nobody sends more.
const FRAME_MAX: usize = 1 << 26;

/// The name of a node's machine.
pub fn host_name(node: u32) -> String {
    format!("n{node}")
}

/// `http://n3:9093/path` → 3, `n3:9093`, `/path`.
fn parts(url: &str) -> Option<(u32, &str, &str)> {
    let rest = url.strip_prefix("http://")?;
    let at = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(at);
    let node = authority.strip_prefix('n')?.split(':').next()?.parse().ok()?;
    Some((node, authority, path))
}

async fn write_frame(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&length.to_be_bytes()).await?;
    stream.write_all(bytes).await
}

async fn read_frame(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    let length = u32::from_be_bytes(length) as usize;
    if length > FRAME_MAX {
        return Err(io::Error::other("a frame too large"));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Method, path, headers, body.
type RequestFrame = (String, String, Vec<(String, String)>, Vec<u8>);
/// Status, body.
type ResponseFrame = (u16, Vec<u8>);

/// One node's way to the others.
pub struct Wire {
    pub world: World,
    pub me: u32,
    pub rng: Mutex<Rng>,
}

/// Connects; silence where the simulated network would say "refused" for a message it dropped, and the other way round.
async fn dial(world: &World, me: u32, to: u32) -> io::Result<TcpStream> {
    let refused_after = {
        let world = world.lock();
        let cut = world.is_cut(me, to) || world.is_cut(to, me);
        let refuses = !cut && world.machines[&to].down == Some(Down::Process);
        refuses.then(|| Duration::from_millis(world.swarm.latency_ms.1))
    };
    if let Some(after) = refused_after {
        sleep(after).await;
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    let dialled = TcpStream::connect((host_name(to), PORT)).await;
    let cut = {
        let world = world.lock();
        world.is_cut(me, to) || world.is_cut(to, me)
    };
    if dialled.is_err() && cut {
        pending::<()>().await;
    }
    dialled
}

/// Why there was no answer.
enum Failed {
    Connect(io::Error),
    ConnectTime,
    Broken(io::Error),
}

async fn ask(world: World, me: u32, to: u32, frame: Vec<u8>, after: Duration) -> Result<ResponseFrame, Failed> {
    if !after.is_zero() {
        sleep(after).await;
    }
    let mut stream = match timeout(CONNECT, dial(&world, me, to)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(Failed::Connect(error)),
        Err(_) => return Err(Failed::ConnectTime),
    };
    let answered = async {
        write_frame(&mut stream, &frame).await?;
        read_frame(&mut stream).await
    };
    let answer = answered.await.map_err(Failed::Broken)?;
    postcard::from_bytes(&answer).map_err(|error| Failed::Broken(io::Error::other(error)))
}

impl Wire {
    async fn send(&self, request: Outbound) -> Result<Inbound, NoAnswer> {
        let Outbound { method, url, headers, body, deadline } = request;
        let Some((to, _, path)) = parts(&url) else {
            return Err(NoAnswer { connected: false, timed_out: false, why: format!("{url} is nowhere") });
        };
        let headers: Vec<(String, String)> =
            headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let frame: RequestFrame = (method.to_string(), path.to_owned(), headers, body.to_vec());
        let bytes = postcard::to_stdvec(&frame).unwrap();
        let (world, me) = (self.world.clone(), self.me);
        let (twice, late) = {
            let mut rng = self.rng.lock();
            let mut world = world.lock();
            let twice = rng.chance(world.swarm.duplicated) && may_come_twice(path, &body);
            let late = rng.chance(world.swarm.late);
            world.counts.exchanges += 1;
            world.counts.late += u64::from(late);
            (twice.then(|| rng.below(LATE_MS)), if late { rng.below(LATE_MS) } else { 0 })
        };
        let asked = ask(world.clone(), me, to, bytes.clone(), Duration::from_millis(late));
        // A caller that gives up does not take back what is on its way.
        let answered = match late {
            0 => timeout(deadline, asked).await,
            _ => {
                let sent = tokio::spawn(timeout(CONNECT * 4 + Duration::from_millis(late), asked));
                let broken = || Failed::Broken(io::Error::other("given up"));
                let sent = async { sent.await.map_err(|_| broken())?.map_err(|_| broken())? };
                timeout(deadline, sent).await
            }
        };
        // Only what was sent can come twice.
        if let Some(after) = twice
            && !matches!(answered, Ok(Err(Failed::Connect(_) | Failed::ConnectTime)))
        {
            let again = ask(world.clone(), me, to, bytes, Duration::from_millis(after));
            tokio::spawn(timeout(CONNECT * 4 + Duration::from_millis(after), again));
            let mut world = world.lock();
            world.counts.duplicated += 1;
            if path == "/propose" {
                world.hit(Mark::ProposedTwice);
            } else if path.starts_with("/raft/") {
                world.hit(Mark::RaftTwice);
            }
        }
        let answer = match answered {
            Ok(Ok((status, body))) => Ok(Inbound { status: StatusCode::from_u16(status).unwrap(), body: body.into() }),
            Ok(Err(Failed::Connect(error))) => {
                Err(NoAnswer { connected: false, timed_out: false, why: error.to_string() })
            }
            Ok(Err(Failed::ConnectTime)) => {
                Err(NoAnswer { connected: false, timed_out: true, why: "no connection in time".to_owned() })
            }
            Ok(Err(Failed::Broken(error))) => {
                Err(NoAnswer { connected: true, timed_out: false, why: error.to_string() })
            }
            Err(_) => Err(NoAnswer { connected: true, timed_out: true, why: "no answer in time".to_owned() }),
        };
        let status = answer.as_ref().map_or(0, |answer| u64::from(answer.status.as_u16()));
        let length = answer.as_ref().map_or(0, |answer| answer.body.len() as u64);
        let why = answer.as_ref().err().map(|error| error.why.clone()).unwrap_or_default();
        let facts = [u64::from(me), u64::from(to), path.len() as u64, status, length, body.len() as u64];
        let mut world = world.lock();
        if path == "/propose" && status == 200 {
            world.hit(Mark::Forwarded);
        }
        world.note(10, &facts, || format!("n{me} → n{to} {path} ({}): {status} {length} {why}", body.len()));
        drop(world);
        answer
    }
}

impl Transport for Wire {
    fn exchange(&self, request: Outbound) -> BoxFuture<'_, Result<Inbound, NoAnswer>> {
        Box::pin(self.send(request))
    }

    fn knock<'a>(&'a self, authority: &'a str) -> BoxFuture<'a, Knock> {
        Box::pin(async move {
            let url = format!("http://{authority}");
            let Some((to, _, _)) = parts(&url) else { return Knock::Unknown("nowhere".to_owned()) };
            let knocked = timeout(KNOCK, dial(&self.world, self.me, to)).await;
            let me = self.me;
            self.world.lock().note(11, &[u64::from(me), u64::from(to)], || {
                let how = knocked.as_ref().map(|it| it.as_ref().map(|_| ()));
                format!("n{me} knocks at n{to}: {how:?}")
            });
            match knocked {
                Ok(Ok(_)) => Knock::Accepted,
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Knock::Refused,
                Ok(Err(error)) => Knock::Unknown(error.to_string()),
                Err(_) => Knock::Unknown("it does not answer".to_owned()),
            }
        })
    }

    fn hold<'a>(&'a self, authority: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let url = format!("http://{authority}");
            let Some((to, _, _)) = parts(&url) else { return };
            let Ok(Ok(mut stream)) = timeout(CONNECT, dial(&self.world, self.me, to)).await else { return };
            let mut byte = [0; 1];
            let _ = stream.read(&mut byte).await;
        })
    }
}

/// Serves a node's routes until the process ends.
pub async fn serve(
    world: World,
    me: u32,
    member: highwater_quorum::QuorumMember,
    listener: TcpListener,
    routes: axum::Router,
) {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else { return };
        let (world, routes) = (world.clone(), routes.clone());
        tokio::spawn(async move {
            // A line that is only held sends nothing.
            let Ok(frame) = read_frame(&mut stream).await else { return };
            let Ok((method, path, headers, body)) = postcard::from_bytes::<RequestFrame>(&frame) else { return };
            let mut request = Request::builder().method(method.as_str()).uri(path.as_str());
            for (name, value) in headers {
                request = request.header(name, value);
            }
            let Ok(answer) = routes.oneshot(request.body(Body::from(body.clone())).unwrap()).await;
            let status = answer.status().as_u16();
            let Ok(bytes) = axum::body::to_bytes(answer.into_body(), usize::MAX).await else { return };
            if status == 200
                && let Some((term, candidate)) = granted(&path, &body, &bytes)
            {
                let mut world = world.lock();
                let votes = world.granted.entry((member.node, member.directory)).or_default();
                let before = *votes.entry(term).or_insert(candidate.node);
                world
                    .note(12, &[u64::from(me), term], || format!("n{me} votes for n{} in term {term}", candidate.node));
                if before != candidate.node {
                    let text = format!("n{me} voted for n{before} and for n{} in term {term}", candidate.node);
                    world.violate("one vote per term", text);
                }
            }
            if status == 200
                && let Some(entry) = installed(&path, &body, &bytes)
            {
                let mut world = world.lock();
                world.hit(Mark::SnapshotInstalled);
                world.installed.insert((member.node, member.directory), entry);
                world.note(13, &[u64::from(me), entry.index], || format!("n{me} has the snapshot of {entry:?}"));
            }
            let _ = write_frame(&mut stream, &postcard::to_stdvec(&(status, bytes.to_vec())).unwrap()).await;
        });
    }
}
