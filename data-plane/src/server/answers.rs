//! The answers of one connection: they leave in request order, each written by whoever completes it.
//!
//! A request takes a place in the queue; its answer is put there when it is known, from any task or thread, and
//! [`Answers::flush`] writes all that is due in one vectored write. Only when the socket takes no more does the
//! connection's own task have to help.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Buf, Bytes};
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::net::tcp::OwnedWriteHalf;

use crate::partitions::tickets::Flush;
use crate::server::metrics::ServerMetrics;

/// Buffers given to one vectored write.
const PARTS_PER_WRITE: usize = 64;
/// Bytes that may wait for a slow reader before no more of its requests are read.
const UNSENT_BYTES_MAX: usize = 1 << 20;
/// Requests of one connection that may wait for their answers before no more are read.
const WAITING_MAX: usize = 16_384;

/// A request's place among the answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(u64);

/// What belongs at a place.
#[derive(Debug)]
pub enum AnswerBytes {
    /// One frame with its length, in parts.
    Frame(Vec<Bytes>),
    /// Nothing: acks=0 (R46).
    Nothing,
    /// Close the connection when what comes before has been written: acks=0 that failed (R46).
    Close,
}

enum Slot {
    Waiting,
    Ready(AnswerBytes),
}

struct State {
    /// The place at the front of `slots`.
    front: u64,
    slots: VecDeque<Slot>,
    unsent: VecDeque<Bytes>,
    unsent_bytes: usize,
    /// Write no more: broken, or closed on purpose.
    closed: bool,
    /// The connection's task waits for room.
    wants_room: bool,
}

/// The sending half of a connection.
pub struct Answers {
    /// Where answers are counted.
    pub metrics: Arc<ServerMetrics>,
    socket: OwnedWriteHalf,
    state: Mutex<State>,
    /// The connection's task.
    task: AtomicWaker,
    /// The socket takes no more: its task must wait for it.
    stuck: AtomicBool,
    /// Nothing more will be written: its task must end.
    ended: AtomicBool,
}

impl Answers {
    pub fn new(socket: OwnedWriteHalf, metrics: Arc<ServerMetrics>) -> Self {
        let state = State {
            front: 0,
            slots: VecDeque::new(),
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            closed: false,
            wants_room: false,
        };
        Self {
            metrics,
            socket,
            state: Mutex::new(state),
            task: AtomicWaker::new(),
            stuck: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// The next place; its answer must be put.
    pub fn reserve(&self) -> Place {
        let mut state = self.state.lock();
        state.slots.push_back(Slot::Waiting);
        Place(state.front + state.slots.len() as u64 - 1)
    }

    /// Puts an answer; it is written by a flush.
    pub fn put(&self, place: Place, answer: AnswerBytes) {
        let mut state = self.state.lock();
        let index = usize::try_from(place.0.wrapping_sub(state.front)).unwrap_or(usize::MAX);
        if let Some(slot @ Slot::Waiting) = state.slots.get_mut(index) {
            *slot = Slot::Ready(answer);
        }
    }

    /// Whether another request may be handled: its reader keeps up, and not too many wait.
    ///
    /// After `false` the connection's task is woken when there is room again.
    pub fn has_room(&self) -> bool {
        let mut state = self.state.lock();
        state.wants_room = !state.has_room();
        !state.wants_room
    }

    /// Everything asked has been answered and sent, or never will be.
    pub fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.closed || (state.slots.is_empty() && state.unsent.is_empty())
    }

    /// Drops what is not sent; nothing is written any more.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.unsent.clear();
        state.unsent_bytes = 0;
        drop(state);
        self.ended.store(true, Ordering::Release);
        self.task.wake();
    }

    /// For the connection's task, once per poll: wakes it when it must help or end.
    pub fn register(&self, waker: &std::task::Waker) {
        self.task.register(waker);
    }

    /// The socket took no more at the last write.
    pub fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Acquire)
    }

    /// Nothing more will be written.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Polls for room in the socket, then writes on.
    pub fn poll_unstick(&self, cx: &mut std::task::Context<'_>) -> std::task::Poll<()> {
        while self.is_stuck() {
            std::task::ready!(self.socket.as_ref().poll_write_ready(cx)).unwrap_or(());
            self.flush();
        }
        std::task::Poll::Ready(())
    }
}

impl Flush for Answers {
    /// Writes what is due, as far as the socket takes it. Never waits.
    fn flush(&self) {
        let mut state = self.state.lock();
        let close = state.collect();
        let written = state.write(&self.socket);
        if state.wants_room && state.has_room() {
            state.wants_room = false;
            self.task.wake();
        }
        let end = match written {
            Ok(()) => {
                self.stuck.store(false, Ordering::Release);
                close
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !self.stuck.swap(true, Ordering::AcqRel) {
                    self.task.wake();
                }
                false
            }
            Err(_) => true,
        };
        if end {
            state.closed = true;
            drop(state);
            self.stuck.store(false, Ordering::Release);
            self.ended.store(true, Ordering::Release);
            self.task.wake();
        }
    }
}

impl State {
    fn has_room(&self) -> bool {
        self.unsent_bytes < UNSENT_BYTES_MAX && self.slots.len() < WAITING_MAX
    }

    /// Moves the answers whose turn it is to `unsent`. Says whether the connection is to be closed behind them.
    fn collect(&mut self) -> bool {
        while let Some(Slot::Ready(_)) = self.slots.front() {
            let Some(Slot::Ready(answer)) = self.slots.pop_front() else { break };
            self.front += 1;
            match answer {
                AnswerBytes::Frame(parts) => {
                    for part in parts {
                        self.unsent_bytes += part.len();
                        self.unsent.push_back(part);
                    }
                }
                AnswerBytes::Nothing => {}
                AnswerBytes::Close => {
                    // Kept, so that it is found again should what comes before it not be written now.
                    self.front -= 1;
                    self.slots.push_front(Slot::Ready(AnswerBytes::Close));
                    return true;
                }
            }
        }
        false
    }

    fn write(&mut self, socket: &OwnedWriteHalf) -> io::Result<()> {
        if self.closed {
            self.unsent.clear();
            self.unsent_bytes = 0;
        }
        while !self.unsent.is_empty() {
            let empty = IoSlice::new(&[]);
            let mut parts = [empty; PARTS_PER_WRITE];
            let count = self.unsent.iter().take(PARTS_PER_WRITE).zip(&mut parts).map(|(from, to)| {
                *to = IoSlice::new(from);
            });
            let count = count.count();
            let mut written = socket.try_write_vectored(&parts[..count])?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.unsent_bytes -= written;
            while let Some(first) = self.unsent.front_mut() {
                if first.len() > written {
                    first.advance(written);
                    break;
                }
                written -= first.len();
                self.unsent.pop_front();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    async fn pair() -> (Answers, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        server.writable().await.unwrap();
        (Answers::new(server.into_split().1, Arc::default()), client)
    }

    fn frame(text: &'static str) -> AnswerBytes {
        AnswerBytes::Frame(vec![Bytes::from_static(text.as_bytes())])
    }

    #[tokio::test]
    async fn answers_leave_in_request_order_whoever_is_ready_first() {
        let (answers, mut client) = pair().await;
        let places = [answers.reserve(), answers.reserve(), answers.reserve()];
        answers.put(places[2], frame("three"));
        answers.put(places[1], AnswerBytes::Nothing);
        answers.flush();
        assert!(!answers.is_idle());
        answers.put(places[0], frame("one"));
        answers.flush();
        let mut read = [0; 8];
        client.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"onethree");
        assert!(answers.is_idle());
    }

    #[tokio::test]
    async fn a_slow_reader_gets_everything_and_a_failed_acks_0_closes_behind_it() {
        let (answers, mut client) = pair().await;
        let big = Bytes::from(vec![7; 8 << 20]);
        let (first, second) = (answers.reserve(), answers.reserve());
        answers.put(first, AnswerBytes::Frame(vec![big.clone(), big.clone()]));
        answers.put(second, AnswerBytes::Close);
        answers.flush();
        assert!(answers.is_stuck() && !answers.has_room() && !answers.has_ended());
        let drain = async {
            std::future::poll_fn(|cx| answers.poll_unstick(cx)).await;
            assert!(answers.has_ended());
        };
        let mut read = vec![0; 16 << 20];
        let (_, read) = tokio::join!(drain, client.read_exact(&mut read));
        assert_eq!(read.unwrap(), 16 << 20);
    }
}
