//! Every new image to the replicas, and to whoever beats that something changed for this broker.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use highwater_quorum::MetadataImage;
use highwater_quorum::image::BrokerState;
use tokio::sync::{Notify, watch};

use crate::error::DataPlaneError;
use crate::identity::Identity;
use crate::reconcile::Reconciler;
use crate::view::NodeState;

/// What follows the images of the metadata.
pub struct Follower {
    pub reconciler: Reconciler,
    pub images: watch::Receiver<Arc<MetadataImage>>,
    pub identity: Arc<Identity>,
    pub state: Arc<NodeState>,
    /// For what is said of a failure.
    pub log_dir: PathBuf,
    /// Wakes whoever beats.
    pub changed: Arc<Notify>,
}

impl Follower {
    /// Ends only with a failure.
    pub async fn run(mut self) -> Result<(), DataPlaneError> {
        let mut leaving = BTreeSet::new();
        // The image with a registration may be here before the answer to it: what was not for this process then is, once
        // it knows its epoch, and perhaps no further image comes.
        let mut epochs = self.identity.watch();
        self.state.has_acted_on(self.reconciler.told().version);
        loop {
            epochs.borrow_and_update();
            let image = self.images.borrow_and_update().clone();
            let registration = image.brokers.get(&self.identity.broker).cloned();
            let all = image.brokers.clone();
            let shutting_down = all.values().filter(|broker| broker.state == BrokerState::ShuttingDown);
            let applied = self.reconciler.apply(image).await;
            let applied = applied.map_err(|error| DataPlaneError::Storage {
                path: self.log_dir.clone(),
                why: error.to_string().into(),
            })?;
            if applied {
                self.state.has_acted_on(self.reconciler.told().version);
            }
            // The quorum lets a broker stop when every other has heard of it (R174): it need not wait for our next
            // heartbeat.
            let now_leaving: BTreeSet<_> = shutting_down.map(|broker| (broker.id, broker.epoch)).collect();
            if !now_leaving.is_subset(&leaving) {
                self.changed.notify_one();
            }
            leaving = now_leaving;
            // Fenced, unregistered, or unfenced: heard here sooner than from the next heartbeat (D11).
            let active = registration.is_some_and(|broker| broker.state == BrokerState::Active);
            if active != self.state.unfenced.load(Ordering::Acquire) {
                self.changed.notify_one();
            }
            tokio::select! {
                more = self.images.changed() => if more.is_err() { return Err(DataPlaneError::Stopped) },
                // It cannot end: this holds the sender.
                _ = epochs.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use highwater_quorum::ImageVersion;
    use highwater_quorum::image::{BrokerRegistration, Change, DataProof};
    use highwater_wire::{BrokerEpoch, BrokerId, ClusterId, DirectoryId, IncarnationId, Millis, Timestamp};
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::disk::FsDisk;
    use crate::log::LogDir;
    use crate::log::log_dir::Opening;
    use crate::partitions::{Edges, Partitions};
    use crate::sync_pool::SyncPool;

    /// An image with broker 1 registered by the entry `epoch`.
    fn registered(epoch: i64) -> Arc<MetadataImage> {
        let mut image = MetadataImage { version: ImageVersion(epoch.unsigned_abs()), ..Default::default() };
        image.apply(&Change::Broker(Arc::new(BrokerRegistration {
            id: BrokerId(1),
            incarnation: IncarnationId::from_bytes([1; 16]),
            epoch: BrokerEpoch(epoch),
            listeners: Default::default(),
            inter_broker_listener: "PLAINTEXT".to_owned(),
            controller_url: String::new(),
            admin_url: String::new(),
            rack: None,
            log_dirs: vec![],
            metadata_dir: DirectoryId::from_bytes([1; 16]),
            features: Default::default(),
            version: String::new(),
            state: BrokerState::Fenced,
            state_since: Timestamp(0),
            kept_data: DataProof::None,
        })));
        Arc::new(image)
    }

    #[tokio::test]
    async fn an_image_that_comes_before_the_answer_to_its_registration_is_acted_on_with_the_answer() {
        let dir = tempfile::tempdir().unwrap();
        let opening =
            Opening { cluster: ClusterId("c".to_owned()), broker: BrokerId(1), boot_id: None, boot_time_ms: 0 };
        let (log_dir, _) = LogDir::open(FsDisk, dir.path(), &opening).unwrap();
        let (sync_pool, _threads) = SyncPool::start(1).unwrap();
        let (isr, _proposals) = unbounded_channel();
        let (fetchable, _wishes) = unbounded_channel();
        let (storage_failed, _failures) = unbounded_channel();
        let runtime = tokio::runtime::Handle::current();
        let partitions = Partitions::new(Edges { isr, fetchable, storage_failed, sync_pool, dir: log_dir, runtime });
        let identity = Arc::new(Identity::new(BrokerId(1)));
        let state = Arc::new(NodeState::new(Arc::clone(&identity)));
        let images = watch::Sender::new(registered(5));
        identity.registered(BrokerEpoch(5));
        let follower = Follower {
            reconciler: Reconciler::new(partitions, Arc::clone(&identity), Millis(30_000), 86_400_000),
            images: images.subscribe(),
            identity: Arc::clone(&identity),
            state: Arc::clone(&state),
            log_dir: dir.path().to_owned(),
            changed: Arc::default(),
        };
        let acted_on = async |version: u64| {
            let reached = || state.acted_on() == ImageVersion(version);
            let waited = async {
                while !reached() {
                    state.next_acted_on(reached).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(10), waited).await.expect("acted on in time");
        };
        let mut following = std::pin::pin!(follower.run());
        tokio::select! {
            end = &mut following => panic!("{end:?}"),
            () = acted_on(5) => {}
        }
        // Registered again, and the image is here first.
        images.send_replace(registered(9));
        assert!(futures::poll!(&mut following).is_pending());
        assert_eq!(state.acted_on(), ImageVersion(5), "it is not known to be for this process");
        identity.registered(BrokerEpoch(9));
        tokio::select! {
            end = &mut following => panic!("{end:?}"),
            () = acted_on(9) => {}
        }
    }
}
