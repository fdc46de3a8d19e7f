//! One process: the product's node on its machine's disk, its routes on the network, and those who use it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use highwater_quorum::image::Endpoint;
use highwater_quorum::sim::{Eye, SimConfig, SimNode, scope};
use highwater_quorum::{NodeRoles, QuorumLimits, QuorumMember};
use highwater_wire::{BrokerId, IncarnationId};
use parking_lot::Mutex;
use turmoil::net::TcpListener;

use crate::marks::Mark;
use crate::net::{PORT, Wire, host_name, serve};
use crate::rng::Rng;
use crate::workload;
use crate::world::World;

/// Where a node is reached.
pub fn endpoint(node: u32) -> Endpoint {
    Endpoint { host: host_name(node), port: PORT }
}

pub fn broker_id(node: u32) -> BrokerId {
    BrokerId(i32::try_from(node).unwrap())
}

/// Runs until the process fails, is stopped, or its machine dies.
pub async fn process(world: World, me: u32) -> turmoil::Result {
    let (rng, boots) = {
        let mut world = world.lock();
        world.counts.boots += 1;
        let machine = world.machines.get_mut(&me).unwrap();
        machine.boots += 1;
        machine.down = None;
        let boots = machine.boots;
        if (Eye { disk: &machine.disk, durable: true }).purged().is_some() {
            world.hit(Mark::BootedPurged);
        }
        world.note(3, &[u64::from(me), boots], || format!("n{me} boots for the {boots}. time"));
        (Rng::new(world.seed).fork(1_000 * u64::from(me) + boots), boots)
    };
    scope(rng.fork(0).next_u64(), run(world, me, rng, boots)).await;
    Ok(())
}

async fn run(world: World, me: u32, rng: Rng, boots: u64) {
    let (swarm, disk, stop) = {
        let world = world.lock();
        let machine = &world.machines[&me];
        (world.swarm.clone(), machine.disk.clone(), Arc::clone(&machine.stop))
    };
    let incarnation = IncarnationId::from_bytes(rng.fork(1).bytes16());
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await.unwrap();
    let voters = (1..=swarm.voters).map(|node| (broker_id(node), endpoint(node)));
    let config = SimConfig {
        node: broker_id(me),
        incarnation,
        voters: if me <= swarm.voters { voters.collect() } else { Default::default() },
        bootstrap: if me <= swarm.voters { Vec::new() } else { (1..=swarm.voters).map(endpoint).collect() },
        advertised: endpoint(me),
        roles: NodeRoles { broker: true, controller: true },
        limits: QuorumLimits {
            election_timeout: swarm.election_timeout,
            session_timeout: Duration::from_millis(2_500),
            heartbeat_interval: Duration::from_millis(500),
            snapshot_entries: swarm.snapshot_entries,
            leader_imbalance_check: Some(Duration::from_secs(5)),
        },
    };
    let wire = Wire { world: world.clone(), me, rng: Mutex::new(rng.fork(2)) };
    let node = match SimNode::start(config, &disk, Arc::new(wire)).await {
        Ok(node) => Arc::new(node),
        Err(error) => {
            world.lock().violate("a node starts", format!("n{me} does not start: {error}"));
            return;
        }
    };
    {
        let mut world = world.lock();
        let machine = world.machines.get_mut(&me).unwrap();
        if machine.boots == boots {
            machine.process = Some(Arc::clone(&node));
        }
    }
    let member = QuorumMember { node: broker_id(me), directory: node.directory_id() };
    workload::start(&world, me, &node, incarnation, &rng);
    let mut serving = pin!(serve(world.clone(), me, member, listener, node.routes()));
    let how = tokio::select! {
        biased;
        why = node.failed() => {
            let mut world = world.lock();
            if disk.is_broken() {
                world.hit(Mark::SyncFailed);
            } else {
                world.violate("a node whose disk is well goes on", format!("n{me} stops: {why}"));
            }
            format!("must stop: {why}")
        }
        // It answers until raft has stopped (D7).
        () = stop.notified() => tokio::select! {
            () = node.stop() => "stopped in order".to_owned(),
            () = &mut serving => "serves no more".to_owned(),
        },
        () = &mut serving => "serves no more".to_owned(),
    };
    world.lock().note(4, &[u64::from(me), how.len() as u64], || format!("n{me} {how}"));
}
