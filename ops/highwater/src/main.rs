//! Arguments to one verb to an exit code. Everything that is decided is decided below.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use highwater::cli::{
    self, BrokerVerb, Cli, CliError, ConfigArgs, Exit, PartitionVerb, QuorumVerb, StartArgs, StorageVerb, Verb,
};
use highwater::config::{self, NodeConfig, Severity};
use highwater::telemetry::Telemetry;
use highwater::{Node, dev, limits, storage, telemetry};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // One TLS provider for everything, before anything builds a client.
    let _ = rustls::crypto::ring::default_provider().install_default();
    #[cfg(feature = "flaws")]
    plant_flaw();
    let cli = Cli::parse();
    let exit = match run(cli.verb) {
        Ok(exit) => exit,
        Err(error) => {
            eprintln!("highwater: {error:#}");
            error.downcast_ref::<CliError>().map_or(Exit::Failed, |error| error.exit)
        }
    };
    ExitCode::from(exit as u8)
}

/// Leaves out the safety rule that `HIGHWATER_FLAW` names (`R242`).
#[cfg(feature = "flaws")]
fn plant_flaw() {
    use highwater_quorum::flaws::{Flaw, plant_everywhere};
    let Ok(rule) = std::env::var("HIGHWATER_FLAW") else { return };
    let flaw = Flaw::ALL.into_iter().find(|flaw| flaw.rule() == rule);
    let flaw = flaw.unwrap_or_else(|| panic!("HIGHWATER_FLAW={rule} names no rule"));
    eprintln!("highwater: {flaw:?} is planted: this build loses data");
    plant_everywhere(flaw);
}

fn run(verb: Verb) -> anyhow::Result<Exit> {
    match verb {
        Verb::Start(args) => start(&args),
        Verb::Check(args) => check(&args),
        Verb::Storage(verb) => storage_verb(&verb),
        Verb::Dev(args) => block_on(dev::run(args)),
        Verb::Health(args) => block_on(cli::health::run(&args)),
        Verb::Topic(verb) => block_on(cli::topic::run(&verb)),
        Verb::Group(verb) => block_on(cli::group::run(&verb)),
        Verb::Config(verb) => block_on(cli::config::run(&verb)),
        Verb::LogLevel(verb) => block_on(cli::log_level::run(&verb)),
        Verb::Events(args) => block_on(cli::events::run(&args)),
        Verb::Partition(PartitionVerb::State(args)) => block_on(cli::partition::state(&args)),
        Verb::Partition(PartitionVerb::History(args)) => block_on(cli::partition::history(&args)),
        Verb::Partition(PartitionVerb::Elect(args)) => block_on(cli::elect::run(&args)),
        Verb::Broker(BrokerVerb::List(args)) => block_on(cli::broker::list(&args)),
        Verb::Broker(BrokerVerb::Describe(args)) => block_on(cli::broker::describe(&args)),
        Verb::Broker(BrokerVerb::Check(args)) => block_on(cli::broker::check(&args)),
        Verb::Broker(BrokerVerb::Unregister(args)) => block_on(cli::broker::unregister(&args)),
        Verb::Quorum(QuorumVerb::Status(args)) => block_on(cli::quorum::status(&args)),
        Verb::Quorum(QuorumVerb::AddVoter(args)) => block_on(cli::quorum::add_voter(&args)),
        Verb::Quorum(QuorumVerb::RemoveVoter(args)) => block_on(cli::quorum::remove_voter(&args)),
        Verb::Quorum(QuorumVerb::Transfer(args)) => block_on(cli::quorum::transfer(&args)),
    }
}

fn block_on(verb: impl Future<Output = Result<Exit, CliError>>) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(verb)?)
}

/// Reads a configuration; prints what is wrong with it.
fn read(args: &ConfigArgs, tell: impl Fn(&config::Finding)) -> anyhow::Result<Option<NodeConfig>> {
    let report = config::load(Some(Path::new(&args.config)), &args.set)
        .with_context(|| format!("cannot read {}", args.config.display()))?;
    report.findings.iter().for_each(tell);
    Ok(report.config)
}

fn to_stderr(finding: &config::Finding) {
    eprintln!("{finding}");
}

fn check(args: &ConfigArgs) -> anyhow::Result<Exit> {
    let Some(config) = read(args, to_stderr)? else { return Ok(Exit::Usage) };
    let voters: Vec<String> = config.quorum.voters.keys().map(ToString::to_string).collect();
    println!(
        "{} is fine: node {}, voters {}, data in {}, metadata in {}",
        args.config.display(),
        config.node_id,
        voters.join(","),
        config.log_dir.display(),
        config.metadata_dir.display()
    );
    Ok(Exit::Done)
}

fn storage_verb(verb: &StorageVerb) -> anyhow::Result<Exit> {
    match verb {
        StorageVerb::RandomUuid => println!("{}", highwater_wire::ClusterId::random()),
        StorageVerb::Format { config, cluster_id } => {
            let Some(config) = read(config, to_stderr)? else { return Ok(Exit::Usage) };
            storage::format(&config, cluster_id)?;
            println!("formatted {} and {}", config.log_dir.display(), config.metadata_dir.display());
        }
        StorageVerb::Info { config } => {
            let Some(config) = read(config, |_| {})? else { return Ok(Exit::Usage) };
            print!("{}", storage::info(&config));
        }
    }
    Ok(Exit::Done)
}

fn start(args: &StartArgs) -> anyhow::Result<Exit> {
    // Errors are for the person who starts it; warnings belong into the log.
    let only_errors = |finding: &config::Finding| {
        if finding.severity == Severity::Error {
            to_stderr(finding);
        }
    };
    let Some(config) = read(&args.config, only_errors)? else { return Ok(Exit::Usage) };
    if args.with_parent {
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    }
    let loggers = telemetry::logs(args.log_format, &args.log);
    let warnings = config::load(Some(Path::new(&args.config.config)), &args.config.set)?.findings;
    for finding in warnings {
        warn!("{finding}");
    }
    limits::apply();
    let telemetry = Telemetry { metrics: Some(telemetry::metrics()?), loggers };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let exit = runtime.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let node_id = config.node_id;
        info!(%node_id, version = highwater::node::VERSION, pid = std::process::id(), "starting");
        let node = Node::start(config, telemetry).await?;
        let told = tokio::select! {
            serving = told_when_serving(&node) => match serving {},
            error = node.failed() => Some(error),
            _ = terminate.recv() => None,
            _ = interrupt.recv() => None,
        };
        match &told {
            Some(error) => error!(%error, "this node must stop"),
            None => info!("stopping: leaders move first, then everything is flushed"),
        }
        let stopping = node.stop();
        tokio::select! {
            stopped = stopping => info!(?stopped, "stopped"),
            _ = terminate.recv() => warn!("a second signal: stopping at once, as kill -9 would"),
            _ = interrupt.recv() => warn!("a second signal: stopping at once, as kill -9 would"),
        }
        anyhow::Ok(if told.is_some() { Exit::Failed } else { Exit::Done })
    });
    // What is still running is not waited for: everything that matters is closed.
    runtime.shutdown_background();
    exit
}

/// Says once that the node serves; then waits for ever.
async fn told_when_serving(node: &Node) -> std::convert::Infallible {
    if node.serving().await.is_ok() {
        info!("serving");
    }
    std::future::pending().await
}
