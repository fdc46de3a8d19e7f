//! A TCP proxy whose speed can be changed while it runs.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Forwards `127.0.0.1:port` to a target, at most so many bytes a second from the target to the caller.
pub struct SlowLink {
    bytes_per_second: Arc<AtomicU64>,
}

/// No limit.
pub const UNLIMITED: u64 = u64::MAX;

impl SlowLink {
    /// Listens on `port` and forwards to `target`, at first without a limit.
    pub fn start(port: u16, target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the proxy's port is free");
        let bytes_per_second = Arc::new(AtomicU64::new(UNLIMITED));
        let limit = bytes_per_second.clone();
        thread::spawn(move || {
            for caller in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                let _ = (caller.set_nodelay(true), server.set_nodelay(true));
                let (up_from, up_to) = (caller.try_clone().expect("a clone"), server.try_clone().expect("a clone"));
                thread::spawn(move || pump(up_from, up_to, &AtomicU64::new(UNLIMITED)));
                let limit = limit.clone();
                thread::spawn(move || pump(server, caller, &limit));
            }
        });
        Self { bytes_per_second }
    }

    /// Sets the limit for the direction from the target to the caller.
    pub fn limit(&self, bytes_per_second: u64) {
        self.bytes_per_second.store(bytes_per_second, Ordering::Relaxed);
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, limit: &AtomicU64) {
    let mut buffer = [0; 4096];
    loop {
        let began = Instant::now();
        let Ok(length @ 1..) = from.read(&mut buffer) else { break };
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
        let rate = limit.load(Ordering::Relaxed);
        if rate != UNLIMITED {
            let due = Duration::from_secs_f64(length as f64 / rate as f64);
            thread::sleep(due.saturating_sub(began.elapsed()));
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
