//! Logs (human or JSON, one line per state transition) and the recorder behind `/metrics`.

use std::io::IsTerminal;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    Human,
    Json,
}

/// Upper bounds of the buckets of every `*_seconds` histogram.
const SECONDS: &[f64] =
    &[0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Sends log lines to stderr. `filter`: as in `RUST_LOG`, such as `info,highwater_data=debug`.
pub fn logs(format: LogFormat, filter: &str) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Human => builder.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
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
