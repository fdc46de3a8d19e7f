//! The Kafka listeners: accept, limit, drain.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::handlers::context::{Caller, Context};

pub mod answers;
pub mod connection;
pub mod metrics;

/// The pause after a failed accept: usually there are no file descriptors left.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Accepts connections until `stop`; each is a task of `tasks` and ends at `stop` too, after the answers under way.
pub async fn accept(
    listener: TcpListener,
    name: Arc<str>,
    context: Arc<Context>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let inter_broker = *name == *context.inter_broker_listener;
    context.metrics.listens(&name);
    if let Ok(address) = listener.local_addr() {
        info!(listener = %name, %address, "listening");
    }
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(listener = %name, %error, "cannot accept a connection; trying again");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        // Brokers are never turned away: clients must not be able to cut replication off.
        if !inter_broker && context.metrics.connections() >= context.live.connections_max() {
            context.metrics.rejected(&name);
            debug!(listener = %name, %peer, "max.connections reached; connection closed");
            continue;
        }
        if let Err(error) = stream.set_nodelay(true) {
            debug!(listener = %name, %peer, %error, "connection lost at once");
            continue;
        }
        let caller = Caller { listener: name.clone(), inter_broker, peer };
        tasks.spawn(connection::serve(stream, caller, context.clone(), stop.clone()));
    }
}
