//! One connection: bytes → frames → requests, handled in order; answers leave in request order.
//!
//! A Produce that waits for replicas does not hold up the next request; whoever completes it writes its answer
//! (`answers.rs`). Everything else that waits – a fetch for data, a creation for the quorum – holds up this connection
//! only, as in Kafka. While it waits the socket is still read, so that a peer's death is seen at once.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use highwater_wire::frame::{FrameBuffer, FrameLimits};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::answers::Answers;
use crate::handlers::context::{Caller, Context};
use crate::handlers::{self, Handled, Session};
use crate::partitions::tickets::Flush;

/// Bytes that may be read ahead while a request waits.
const READ_AHEAD_MAX: usize = 256 << 10;
/// Frames other than Produce (R55).
const OTHER_BYTES_MAX: usize = 1 << 20;
/// How long answers under way may take when the server stops.
const DRAIN: Duration = Duration::from_secs(2);

/// A request that waits for something other than replicas.
pub type Waiting = Pin<Box<dyn Future<Output = ()> + Send>>;

enum Event {
    Handled,
    Read,
    /// The peer closed its side, or the connection broke.
    Gone(Option<io::Error>),
    /// Our side ended: a failed acks=0, a broken write.
    Ended,
    /// A slow reader has made room.
    Room,
    Idle,
    Stop,
}

/// Serves one connection until it ends.
pub async fn serve(stream: TcpStream, caller: Caller, context: Arc<Context>, stop: CancellationToken) {
    let guard = context.metrics.connected(&caller.listener);
    let (reader, writer) = stream.into_split();
    let answers = Arc::new(Answers::new(writer, context.metrics.clone()));
    let session = Session::new(context.clone(), caller, answers.clone());
    let limits = FrameLimits { produce_bytes: context.live.request_bytes_max(), other_bytes: OTHER_BYTES_MAX };
    let connection = Connection {
        reader,
        frames: FrameBuffer::new(limits),
        answers,
        session,
        waiting: None,
        idle_max: context.live.connection_idle_max(),
        last_read: Instant::now(),
    };
    connection.run(stop).await;
    drop(guard);
}

struct Connection {
    reader: OwnedReadHalf,
    frames: FrameBuffer,
    answers: Arc<Answers>,
    session: Session,
    waiting: Option<Waiting>,
    idle_max: Duration,
    last_read: Instant,
}

impl Connection {
    async fn run(mut self, stop: CancellationToken) {
        let mut idle = Box::pin(sleep_until(Instant::now() + self.idle_max));
        let stopped = stop.cancelled();
        let mut stopped = std::pin::pin!(stopped);
        let mut stopping = false;
        loop {
            if stopping {
                // No further request is handled, but what was asked is answered.
                self.answers.flush();
            } else if !self.handle_frames() {
                break;
            }
            if stopping && self.waiting.is_none() && self.answers.is_idle() {
                break;
            }
            match self.next_event(&mut idle, stopped.as_mut(), stopping).await {
                Event::Read => self.last_read = Instant::now(),
                Event::Handled | Event::Room => {}
                Event::Gone(error) => {
                    self.session.peer_gone(error.as_ref(), self.frames.end().err());
                    break;
                }
                Event::Ended => break,
                Event::Idle if stopping => break,
                Event::Idle => {
                    if !self.is_idle(&mut idle) {
                        continue;
                    }
                    debug!(peer = %self.session.caller.peer, "connection idle for too long; closed");
                    break;
                }
                Event::Stop => {
                    stopping = true;
                    self.session.interrupt();
                    idle.as_mut().reset(Instant::now() + DRAIN);
                }
            }
        }
        self.answers.close();
        self.session.close();
    }

    /// Handles what has arrived, in order, until one waits or there is no room for answers. `false`: close.
    fn handle_frames(&mut self) -> bool {
        while self.waiting.is_none() && self.answers.has_room() {
            match self.frames.pop() {
                Ok(Some(frame)) => match self.session.handle(frame) {
                    Ok(Handled::Done) => {}
                    Ok(Handled::Later(waiting)) => {
                        self.waiting = Some(waiting);
                        if !self.frames.is_empty() {
                            self.session.interrupt();
                        }
                    }
                    Err(fault) => {
                        self.say_goodbye(&fault.to_string());
                        return false;
                    }
                },
                Ok(None) => break,
                Err(fault) => {
                    self.say_goodbye(&fault.to_string());
                    return false;
                }
            }
        }
        self.answers.flush();
        true
    }

    /// The one log line of a connection that is closed for its own fault.
    fn say_goodbye(&self, why: &str) {
        let handlers::context::Caller { listener, peer, .. } = &*self.session.caller;
        info!(%listener, %peer, client = self.session.client(), why, "closing a connection");
    }

    fn is_idle(&self, idle: &mut Pin<Box<Sleep>>) -> bool {
        let until = self.last_read + self.idle_max;
        let now = Instant::now();
        if until <= now && self.answers.is_idle() && self.waiting.is_none() {
            return true;
        }
        idle.as_mut().reset(until.max(now + Duration::from_secs(1)));
        false
    }

    async fn next_event(
        &mut self,
        idle: &mut Pin<Box<Sleep>>,
        mut stopped: Pin<&mut impl Future<Output = ()>>,
        stopping: bool,
    ) -> Event {
        let had_room = self.answers.has_room();
        std::future::poll_fn(move |cx| {
            self.answers.register(cx.waker());
            if self.answers.has_ended() {
                return Poll::Ready(Event::Ended);
            }
            if let Some(waiting) = &mut self.waiting
                && waiting.as_mut().poll(cx).is_ready()
            {
                self.waiting = None;
                return Poll::Ready(Event::Handled);
            }
            if self.answers.is_stuck() {
                let _ = self.answers.poll_unstick(cx);
            }
            if !had_room && self.answers.has_room() {
                return Poll::Ready(Event::Room);
            }
            if stopping && self.waiting.is_none() && self.answers.is_idle() {
                return Poll::Ready(Event::Handled);
            }
            if had_room && (self.waiting.is_none() || self.frames.len() < READ_AHEAD_MAX) {
                match pin!(self.reader.read_buf(self.frames.read_space())).poll(cx) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Event::Gone(None)),
                    Poll::Ready(Ok(_)) if self.waiting.is_some() || stopping => {
                        // Cannot be handled yet, but a fetch that waits need not wait for its time to pass. Poll again,
                        // so that the end of the stream is seen.
                        self.session.interrupt();
                        cx.waker().wake_by_ref();
                    }
                    Poll::Ready(Ok(_)) => return Poll::Ready(Event::Read),
                    Poll::Ready(Err(error)) => return Poll::Ready(Event::Gone(Some(error))),
                    Poll::Pending => {}
                }
            }
            if !stopping && stopped.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::Stop);
            }
            if idle.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::Idle);
            }
            Poll::Pending
        })
        .await
    }
}
