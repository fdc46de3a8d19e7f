//! Logs (human or JSON, one line per state transition) and the recorder behind `/metrics`.

use std::io::IsTerminal;

use highwater_data::loggers::{Levels, LogLevel, Loggers, Named, ROOT};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, fmt, reload};

/// What of a process its nodes report to, and what they may change of it.
#[derive(Debug, Clone)]
pub struct Telemetry {
    /// The recorder behind `/metrics`.
    pub metrics: Option<PrometheusHandle>,
    pub loggers: Loggers,
}

impl Default for Telemetry {
    /// No recorder; loggers whose levels are kept and do nothing. For several nodes in one process.
    fn default() -> Self {
        let levels = Levels::from([(String::new(), LogLevel::Info)]);
        Self { metrics: None, loggers: Loggers::new(LOGGERS, levels, |_| {}) }
    }
}

/// Every logger: its name, and the target that its lines begin with.
const LOGGERS: &[Named] = &[
    (ROOT, ""),
    ("admin", "highwater_admin"),
    ("data", "highwater_data"),
    ("duty", "highwater_quorum::duty"),
    ("fetcher", "highwater_data::fetcher"),
    ("handlers", "highwater_data::handlers"),
    ("isr_reporter", "highwater_data::isr_reporter"),
    ("keeping", "highwater_data::keeping"),
    ("lifecycle", "highwater_data::lifecycle"),
    ("node", "highwater::"),
    ("openraft", "openraft"),
    ("partitions", "highwater_data::partitions"),
    ("quorum", "highwater_quorum"),
    ("raft", "highwater_quorum::raft"),
    ("reconcile", "highwater_data::reconcile"),
    ("replica", "highwater_data::replica"),
    ("server", "highwater_data::server"),
];

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    Human,
    Json,
}

/// Upper bounds of the buckets of every `*_seconds` histogram.
const SECONDS: &[f64] =
    &[0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Sends log lines to stderr. `filter`: as in `RUST_LOG`, such as `info,highwater_data=debug`. The levels can be changed
/// from then on.
pub fn logs(format: LogFormat, filter: &str) -> Loggers {
    let targets = filter.parse().unwrap_or_else(|error| {
        eprintln!("highwater: \"{filter}\" is no filter of log lines ({error}); going on with \"info\"");
        Targets::new().with_default(LevelFilter::INFO)
    });
    let (filter, loggers) = changeable(&targets);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines: Box<dyn Layer<_> + Send + Sync> = match format {
        LogFormat::Human => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(lines).init();
    loggers
}

/// A filter, and the loggers that change it. Whether a line is told is remembered at the place that writes it until a
/// level changes, so what is not told costs a load and a comparison.
fn changeable(targets: &Targets) -> (reload::Layer<Targets, Registry>, Loggers) {
    let mut configured: Levels = targets.iter().map(|(target, level)| (target.to_owned(), log_level(level))).collect();
    configured.insert(String::new(), targets.default_level().map_or(LogLevel::Off, log_level));
    let (filter, handle) = reload::Layer::new(targets.clone());
    let loggers = Loggers::new(LOGGERS, configured, move |levels| {
        let root = levels.get("").map_or(LevelFilter::OFF, |level| level_filter(*level));
        let named = levels.iter().filter(|(target, _)| !target.is_empty());
        let targets = Targets::new().with_default(root);
        let _ =
            handle.reload(targets.with_targets(named.map(|(target, level)| (target.clone(), level_filter(*level)))));
    });
    (filter, loggers)
}

const LEVELS: [(LogLevel, LevelFilter); 6] = [
    (LogLevel::Off, LevelFilter::OFF),
    (LogLevel::Error, LevelFilter::ERROR),
    (LogLevel::Warn, LevelFilter::WARN),
    (LogLevel::Info, LevelFilter::INFO),
    (LogLevel::Debug, LevelFilter::DEBUG),
    (LogLevel::Trace, LevelFilter::TRACE),
];

fn log_level(filter: LevelFilter) -> LogLevel {
    LEVELS.iter().find(|(_, known)| *known == filter).map_or(LogLevel::Off, |(level, _)| *level)
}

fn level_filter(level: LogLevel) -> LevelFilter {
    LEVELS.iter().find(|(known, _)| *known == level).map_or(LevelFilter::OFF, |(_, filter)| *filter)
}

/// Installs the recorder of this process's counters and histograms.
///
/// # Errors
/// One is installed already.
pub fn metrics() -> Result<PrometheusHandle, BuildError> {
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS)?
        .build_recorder();
    let handle = recorder.handle();
    // A second node in one process shares the first one's recorder.
    let _ = ::metrics::set_global_recorder(recorder);
    highwater_admin::metrics::catalogue::describe();
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::{debug, info};

    use super::*;

    /// What was written.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        fn taken(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
        }
    }

    #[test]
    fn a_level_that_is_set_is_in_force_with_the_next_line() {
        let lines = Lines::default();
        let (filter, loggers) = changeable(&"info,openraft=error".parse().unwrap());
        let written = lines.clone();
        let layer = fmt::layer().with_ansi(false).with_writer(move || written.clone());
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(filter).with(layer));
        let tell = || {
            info!(target: "openraft::core", "vote");
            debug!(target: "highwater_data::replica::note", "became leader");
            debug!(target: "highwater_quorum::raft", "heard");
        };
        tell();
        assert_eq!(lines.taken(), "");
        loggers.set("replica", LogLevel::Debug, None).unwrap();
        loggers.set("openraft", LogLevel::Info, None).unwrap();
        tell();
        let told = lines.taken();
        assert!(told.contains("became leader") && told.contains("vote") && !told.contains("heard"), "{told}");
        loggers.reset("replica").unwrap();
        loggers.set("root", LogLevel::Debug, None).unwrap();
        loggers.set("openraft", LogLevel::Off, None).unwrap();
        tell();
        let told = lines.taken();
        assert!(told.contains("became leader") && told.contains("heard") && !told.contains("vote"), "{told}");
    }

    #[test]
    fn every_logger_is_a_part_that_there_is() {
        for (name, target) in LOGGERS.iter().filter(|(_, target)| target.starts_with("highwater_")) {
            let room = match target.split("::").next() {
                Some("highwater_data") => "../../data-plane/src",
                Some("highwater_quorum") => "../../metadata-quorum/src",
                _ => "../../admin-api/src",
            };
            let file = target.split_once("::").map_or("lib", |(_, module)| module);
            let path = format!("{}/{room}/{file}.rs", env!("CARGO_MANIFEST_DIR"));
            assert!(std::path::Path::new(&path).is_file(), "{name}: {path}");
        }
        assert!(LOGGERS[1..].windows(2).all(|pair| pair[0].0 < pair[1].0), "in the order of the alphabet");
    }
}
