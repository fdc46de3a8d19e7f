//! `highwater storage`: what lies in a node's directories, and naming the cluster before its first start.
//!
//! Formatting is optional: the first start formats empty directories by itself.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::config::NodeConfig;

/// Holds the cluster id that `storage format` was given, until the cluster is formed with it.
const CLUSTER_ID_FILE: &str = "cluster.id";

/// Why directories cannot be formatted or read.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{} is not empty; a node's directories are formatted once (remove it, or leave out storage format)", .0.display())]
    NotEmpty(PathBuf),
    #[error("\"{0}\" cannot be a cluster id: use 1 to 64 letters, digits, - and _ (storage random-uuid prints one)")]
    BadClusterId(String),
    #[error(
        "{} was formatted for cluster {formatted}, but the configuration says {configured}: one of them belongs to \
         another cluster",
        path.display()
    )]
    OtherCluster { path: PathBuf, formatted: String, configured: String },
}

/// The cluster id this node is to form or join: configured, or as formatted; `None`: whatever the others say.
///
/// # Errors
/// Both are there and differ.
pub fn cluster_id(config: &NodeConfig) -> Result<Option<String>, StorageError> {
    let path = config.metadata_dir.join(CLUSTER_ID_FILE);
    let formatted = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text.trim().to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(source) => return Err(StorageError::Io { path, source }),
    };
    match (formatted, config.cluster_id.clone()) {
        (Some(formatted), Some(configured)) if formatted != configured => {
            Err(StorageError::OtherCluster { path, formatted, configured })
        }
        (formatted, configured) => Ok(formatted.or(configured)),
    }
}

/// Creates the directories and notes the cluster id.
///
/// # Errors
/// Something lies in them already, or they cannot be written.
pub fn format(config: &NodeConfig, cluster_id: &str) -> Result<(), StorageError> {
    let valid = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if cluster_id.is_empty() || cluster_id.len() > 64 || !cluster_id.chars().all(valid) {
        return Err(StorageError::BadClusterId(cluster_id.to_owned()));
    }
    for dir in std::iter::once(&config.metadata_dir).chain(Some(&config.log_dir).filter(|_| config.roles.broker)) {
        let io = |source| StorageError::Io { path: dir.clone(), source };
        std::fs::create_dir_all(dir).map_err(io)?;
        if std::fs::read_dir(dir).map_err(io)?.next().is_some() {
            return Err(StorageError::NotEmpty(dir.clone()));
        }
    }
    let path = config.metadata_dir.join(CLUSTER_ID_FILE);
    let write = || -> std::io::Result<()> {
        std::fs::write(&path, format!("{cluster_id}\n"))?;
        std::fs::File::open(&path)?.sync_all()?;
        std::fs::File::open(&config.metadata_dir)?.sync_all()
    };
    write().map_err(|source| StorageError::Io { path: path.clone(), source })
}

/// What lies in the directories, for a person.
pub fn info(config: &NodeConfig) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "node.id           {}", config.node_id);
    if config.roles.broker {
        describe(&mut out, "log.dirs", &config.log_dir);
    }
    describe(&mut out, "metadata.log.dir", &config.metadata_dir);
    out
}

fn describe(out: &mut String, key: &str, dir: &Path) {
    let _ = write!(out, "{key:<17} {}", dir.display());
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let _ = writeln!(out, "  (does not exist: the first start creates it)");
            return;
        }
        Err(error) => {
            let _ = writeln!(out, "  ({error})");
            return;
        }
    };
    let names: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    if names.is_empty() {
        let _ = writeln!(out, "  (empty: the first start formats it)");
        return;
    }
    let partitions = names.iter().filter(|path| path.join("partition.metadata").exists()).count();
    let _ = write!(out, "  ({} bytes", size(dir));
    if partitions > 0 {
        let _ = write!(out, ", {partitions} partitions");
    }
    let _ = writeln!(out, ")");
    for name in ["meta.properties", CLUSTER_ID_FILE, ".clean-shutdown"] {
        let Ok(text) = std::fs::read_to_string(dir.join(name)) else { continue };
        let _ = writeln!(out, "  {name}");
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            let _ = writeln!(out, "    {line}");
        }
    }
}

fn size(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.metadata().ok().map(|meta| (entry.path(), meta)))
        .map(|(path, meta)| if meta.is_dir() { size(&path) } else { meta.len() })
        .sum()
}
