//! Log levels of this process, by part, as they are now: what the start said, under what was set since. Set levels live
//! in memory only, as Kafka's do: a restart is back at what the start says.
//!
//! Decides which level a part has; the filter of log lines itself is the binary's, handed in as a function.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use highwater_wire::Timestamp;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// From the least to the most that is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    /// In Kafka's words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "OFF",
            Self::Error => "ERROR",
            Self::Warn => "WARN",
            Self::Info => "INFO",
            Self::Debug => "DEBUG",
            Self::Trace => "TRACE",
        }
    }
}

/// No level is called that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a level must be FATAL, ERROR, WARN, INFO, DEBUG, TRACE or OFF")]
pub struct UnknownLevel;

impl FromStr for LogLevel {
    type Err = UnknownLevel;

    /// In capitals or not. Kafka's FATAL is an error here.
    fn from_str(text: &str) -> Result<Self, UnknownLevel> {
        Ok(match text.to_ascii_uppercase().as_str() {
            "OFF" => Self::Off,
            "FATAL" | "ERROR" => Self::Error,
            "WARN" => Self::Warn,
            "INFO" => Self::Info,
            "DEBUG" => Self::Debug,
            "TRACE" => Self::Trace,
            _ => return Err(UnknownLevel),
        })
    }
}

/// Levels by the beginning of a log line's target; under `""` that of all others.
pub type Levels = BTreeMap<String, LogLevel>;

/// Name of the logger that stands for all parts without a level of their own.
pub const ROOT: &str = "root";

/// A logger: its name, and the target that its lines begin with; that of [`ROOT`] is empty.
pub type Named = (&'static str, &'static str);

/// One logger as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logger {
    pub name: &'static str,
    pub target: &'static str,
    /// What is told.
    pub level: LogLevel,
    /// What was told without anything set.
    pub configured: LogLevel,
    /// The level set on this very logger.
    pub set: Option<LogLevel>,
    /// When that ends by itself.
    pub until: Option<Timestamp>,
}

/// There is no logger of this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("logger {name} does not exist: there are {known}")]
pub struct UnknownLogger {
    pub name: String,
    /// The names of those that do.
    pub known: String,
}

/// The loggers of this process. Cheap to clone.
#[derive(Clone)]
pub struct Loggers(Arc<Shared>);

struct Shared {
    table: &'static [Named],
    configured: Levels,
    set: Mutex<State>,
    filter: Box<dyn Fn(&Levels) + Send + Sync>,
}

#[derive(Default)]
struct State {
    /// By target.
    chosen: BTreeMap<&'static str, Chosen>,
    /// Choices made so far.
    choices: u64,
}

struct Chosen {
    level: LogLevel,
    until: Option<Timestamp>,
    number: ChoiceNumber,
    /// Gone with the choice.
    _in_force: oneshot::Sender<()>,
}

/// One setting of a level, for whoever will end it.
#[derive(Debug)]
pub struct Choice {
    pub number: ChoiceNumber,
    /// Resolves when it is no longer in force: another one took its place, or it was taken back.
    pub over: oneshot::Receiver<()>,
}

/// Tells one setting of a level from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChoiceNumber(u64);

impl Loggers {
    /// `table`: every logger. `filter` is called with all levels whenever one changes.
    pub fn new(table: &'static [Named], configured: Levels, filter: impl Fn(&Levels) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Shared { table, configured, set: Mutex::default(), filter: Box::new(filter) }))
    }

    /// Every logger, by name.
    pub fn all(&self) -> Vec<Logger> {
        let state = self.0.set.lock();
        let now = self.laid_over(&state);
        let told = self.0.table.iter().map(|(name, target)| {
            let set = state.chosen.get(target);
            Logger {
                name,
                target,
                level: level_of(&now, target),
                configured: level_of(&self.0.configured, target),
                set: set.map(|chosen| chosen.level),
                until: set.and_then(|chosen| chosen.until),
            }
        });
        told.collect()
    }

    /// The logger of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn named(&self, name: &str) -> Result<Logger, UnknownLogger> {
        let found = self.all().into_iter().find(|logger| logger.name == name);
        found.ok_or_else(|| self.unknown(name))
    }

    fn target(&self, name: &str) -> Result<&'static str, UnknownLogger> {
        let found = self.0.table.iter().find(|(known, _)| *known == name);
        found.map(|(_, target)| *target).ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> UnknownLogger {
        let known: Vec<&str> = self.0.table.iter().map(|(name, _)| *name).collect();
        UnknownLogger { name: name.to_owned(), known: known.join(", ") }
    }

    /// Sets a level at once. `until`: when the caller will [end](Self::end) it.
    ///
    /// # Errors
    /// There is no such logger.
    pub fn set(&self, name: &str, level: LogLevel, until: Option<Timestamp>) -> Result<Choice, UnknownLogger> {
        let target = self.target(name)?;
        let mut state = self.0.set.lock();
        state.choices += 1;
        let number = ChoiceNumber(state.choices);
        let (in_force, over) = oneshot::channel();
        state.chosen.insert(target, Chosen { level, until, number, _in_force: in_force });
        (self.0.filter)(&self.laid_over(&state));
        Ok(Choice { number, over })
    }

    /// Takes a logger back to what was configured.
    ///
    /// # Errors
    /// There is no such logger.
    pub fn reset(&self, name: &str) -> Result<(), UnknownLogger> {
        let target = self.target(name)?;
        self.take(target, |_| true);
        Ok(())
    }

    /// Ends one setting of a level, if it is still the one in force.
    pub fn end(&self, name: &str, number: ChoiceNumber) {
        if let Ok(target) = self.target(name) {
            self.take(target, |chosen| chosen.number == number);
        }
    }

    fn take(&self, target: &'static str, goes: impl Fn(&Chosen) -> bool) {
        let mut state = self.0.set.lock();
        if state.chosen.get(target).is_some_and(goes) {
            state.chosen.remove(target);
            (self.0.filter)(&self.laid_over(&state));
        }
    }

    fn laid_over(&self, state: &State) -> Levels {
        let mut levels = self.0.configured.clone();
        levels.extend(state.chosen.iter().map(|(target, chosen)| ((*target).to_owned(), chosen.level)));
        levels
    }
}

impl Default for Loggers {
    /// For a node whose lines are filtered by somebody else.
    fn default() -> Self {
        Self::new(&[(ROOT, "")], Levels::from([(String::new(), LogLevel::Info)]), |_| {})
    }
}

impl fmt::Debug for Loggers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loggers").field("configured", &self.0.configured).finish_non_exhaustive()
    }
}

/// The level of a target: that of the longest beginning of it that has one.
fn level_of(levels: &Levels, target: &str) -> LogLevel {
    let fitting = levels.iter().filter(|(begins, _)| target.starts_with(begins.as_str()));
    fitting.max_by_key(|(begins, _)| begins.len()).map_or(LogLevel::Off, |(_, level)| *level)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Named] = &[
        (ROOT, ""),
        ("data", "highwater_data"),
        ("fetcher", "highwater_data::fetcher"),
        ("quorum", "highwater_quorum"),
        ("raft", "highwater_quorum::raft"),
        ("replica", "highwater_data::replica"),
        ("store", "store"),
    ];

    fn configured() -> Levels {
        Levels::from([
            (String::new(), LogLevel::Info),
            ("store".to_owned(), LogLevel::Error),
            ("highwater_data::fetcher".to_owned(), LogLevel::Debug),
        ])
    }

    fn level(loggers: &Loggers, name: &str) -> LogLevel {
        loggers.named(name).unwrap().level
    }

    #[test]
    fn a_level_holds_for_everything_below_that_has_none_of_its_own() {
        let loggers = Loggers::new(TABLE, configured(), |_| {});
        assert_eq!((level(&loggers, "replica"), level(&loggers, "store")), (LogLevel::Info, LogLevel::Error));
        loggers.set("data", LogLevel::Warn, None).unwrap();
        assert_eq!((level(&loggers, "replica"), level(&loggers, "fetcher")), (LogLevel::Warn, LogLevel::Debug));
        loggers.set(ROOT, LogLevel::Off, None).unwrap();
        assert_eq!((level(&loggers, "quorum"), level(&loggers, "replica")), (LogLevel::Off, LogLevel::Warn));
        loggers.reset("data").unwrap();
        let replica = loggers.named("replica").unwrap();
        assert_eq!((replica.level, replica.configured, replica.set), (LogLevel::Off, LogLevel::Info, None));
        loggers.reset(ROOT).unwrap();
        assert!(loggers.all().iter().all(|logger| logger.level == logger.configured && logger.set.is_none()));
    }

    #[test]
    fn the_filter_hears_of_every_change_and_of_nothing_else() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let filter = heard.clone();
        let loggers = Loggers::new(TABLE, configured(), move |levels| filter.lock().push(level_of(levels, "store")));
        loggers.set("store", LogLevel::Trace, None).unwrap();
        loggers.reset("replica").unwrap();
        loggers.reset("store").unwrap();
        assert_eq!(*heard.lock(), [LogLevel::Trace, LogLevel::Error]);
        let unknown = loggers.set("replication", LogLevel::Trace, None).unwrap_err();
        assert!(
            unknown.to_string().starts_with("logger replication does not exist: there are root, data"),
            "{unknown}"
        );
    }

    #[test]
    fn a_timer_does_not_end_what_was_set_after_it() {
        let loggers = Loggers::new(TABLE, configured(), |_| {});
        let mut first = loggers.set("raft", LogLevel::Debug, Some(Timestamp(5))).unwrap();
        assert_eq!(first.over.try_recv(), Err(oneshot::error::TryRecvError::Empty), "in force");
        let second = loggers.set("raft", LogLevel::Trace, Some(Timestamp(9))).unwrap();
        assert_eq!(first.over.try_recv(), Err(oneshot::error::TryRecvError::Closed), "its timer need not go on");
        loggers.end("raft", first.number);
        let raft = loggers.named("raft").unwrap();
        assert_eq!((raft.level, raft.set, raft.until), (LogLevel::Trace, Some(LogLevel::Trace), Some(Timestamp(9))));
        loggers.end("raft", second.number);
        assert_eq!(level(&loggers, "raft"), LogLevel::Info);
    }
}
