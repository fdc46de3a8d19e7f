//! The command line: verbs, flags, exit codes. `main.rs` dispatches; callers of the HTTP API are files here.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::telemetry::LogFormat;

mod ask;
pub mod broker;
pub mod config;
pub mod elect;
pub mod events;
pub mod group;
pub mod health;
mod http;
pub mod log_level;
pub mod partition;
pub mod quorum;
mod table;
pub mod topic;

/// A replicated log that Kafka clients use unchanged.
#[derive(Debug, Parser)]
#[command(name = "highwater", version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run one node until Ctrl-C or SIGTERM
    Start(StartArgs),
    /// Tell all that is wrong with a configuration, without starting anything
    Check(ConfigArgs),
    /// Look at a node's directories, or name its cluster before the first start
    #[command(subcommand)]
    Storage(StorageVerb),
    /// Run real nodes on this machine with zero configuration, and hurt them
    Dev(DevArgs),
    /// Whether the cluster is healthy, and if not, why
    Health(health::HealthArgs),
    /// List, create, describe, change and delete topics
    #[command(subcommand)]
    Topic(topic::TopicVerb),
    /// Consumer groups: who is in them, how far they are behind, and their positions
    #[command(subcommand)]
    Group(group::GroupVerb),
    /// Configurations of topics and brokers, while they run
    #[command(subcommand)]
    Config(config::ConfigVerb),
    /// How much each part of a running broker tells
    #[command(subcommand)]
    LogLevel(log_level::LogLevelVerb),
    /// What happens in the cluster, as it happens
    Events(events::EventsArgs),
    /// What partitions do and what happened to them
    #[command(subcommand)]
    Partition(PartitionVerb),
    /// The brokers, and whether one may be restarted now
    #[command(subcommand)]
    Broker(BrokerVerb),
    /// Who votes on the metadata and who leads; change it
    #[command(subcommand)]
    Quorum(QuorumVerb),
}

/// Where a configuration comes from.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// server.properties, with Kafka's names
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,
    /// Set a key; stronger than file and environment
    #[arg(short = 'X', value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

#[derive(Debug, Args)]
pub struct StartArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    #[arg(long, value_enum, default_value = "human", env = "HIGHWATER_LOG_FORMAT")]
    pub log_format: LogFormat,
    /// As RUST_LOG: a level, or a level per part
    #[arg(long, default_value = "info,openraft=error,sled=warn", env = "RUST_LOG")]
    pub log: String,
    /// Stop when the process that started this one ends
    #[arg(long, hide = true)]
    pub with_parent: bool,
}

#[derive(Debug, Subcommand)]
pub enum StorageVerb {
    /// Format empty directories for a cluster; optional, the first start does it too
    Format {
        #[command(flatten)]
        config: ConfigArgs,
        /// Id of the cluster to form or join
        #[arg(short = 't', long)]
        cluster_id: String,
    },
    /// Show what lies in the directories
    Info {
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Print a fresh cluster id
    RandomUuid,
}

#[derive(Debug, Args)]
pub struct DevArgs {
    #[command(subcommand)]
    pub verb: Option<DevVerb>,
    /// How many nodes; default: as many as the data directory holds, else 1
    #[arg(long)]
    pub nodes: Option<u16>,
    /// Where everything is kept
    #[arg(long, global = true, default_value = "./highwater-data", env = "HIGHWATER_DATA")]
    pub data: PathBuf,
    /// Ports are P, P+1 and P+2 for Kafka, controller and HTTP, each node 100 further
    #[arg(long, value_name = "P")]
    pub base_port: Option<u16>,
    /// Set a key on every node
    #[arg(short = 'X', value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

#[derive(Debug, Clone, Copy, Subcommand)]
pub enum DevVerb {
    /// kill -9 a node
    Kill { node: u16 },
    /// Start a node that was killed
    Start { node: u16 },
    /// Freeze a node (SIGSTOP)
    Pause { node: u16 },
    /// Let a frozen node go on (SIGCONT)
    Resume { node: u16 },
}

#[derive(Debug, Subcommand)]
pub enum PartitionVerb {
    /// Who leads, who is in sync, who is not and what it waits for
    State(partition::StateArgs),
    /// Every change of in-sync replicas and leaders, with reason and evidence
    History(partition::HistoryArgs),
    /// Elect leaders: send them home, name them, or accept loss where nobody can lead without
    Elect(elect::ElectArgs),
}

#[derive(Debug, Subcommand)]
pub enum BrokerVerb {
    /// All registered brokers
    List(broker::ListArgs),
    /// One broker, and how far it is after its last start
    Describe(broker::DescribeArgs),
    /// Whether a broker may be restarted without harm, or which one is next; exit code 7 when it is not safe
    Check(broker::CheckArgs),
    /// Forget a broker that is gone for good and hosts nothing any more
    Unregister(broker::UnregisterArgs),
}

#[derive(Debug, Subcommand)]
pub enum QuorumVerb {
    /// Leader, voters and observers, and how far each is
    Status(quorum::StatusArgs),
    /// Make a node a voter, or let it replace one: it catches up first
    AddVoter(quorum::AddVoterArgs),
    /// Take a vote away; refused when the rest could not go on
    RemoveVoter(quorum::RemoveVoterArgs),
    /// Hand leadership of the quorum to another voter
    Transfer(quorum::TransferArgs),
}

/// Whom to ask, and how to print it.
#[derive(Debug, Args)]
pub struct ApiArgs {
    /// A node's admin API; any node answers
    #[arg(long, default_value = "http://127.0.0.1:8082", env = "HIGHWATER_URL")]
    pub url: String,
    #[arg(short, long, value_enum, default_value = "table", alias = "format")]
    pub output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Table,
    /// The API's object, unchanged
    Json,
    /// One object a line
    Jsonl,
}

/// How a verb ended (operators.md §2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    Conflict = 4,
    Unreachable = 5,
    NotAuthorised = 6,
    Unhealthy = 7,
    PartlyDone = 8,
    Interrupted = 130,
}

/// A verb that did not do what it was asked: what to say, and the exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    pub exit: Exit,
    pub message: String,
}

impl CliError {
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CliError {}
