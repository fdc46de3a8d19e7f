//! Typed access to settings: parses by the key table, notes what does not parse, and goes on with the default.

use std::collections::BTreeMap;
use std::time::Duration;

use super::keys::{self, Kind};
use super::{Finding, Origin, Setting, Severity};

/// The settings under their own names, and what was found wrong so far.
pub(super) struct Values {
    settings: BTreeMap<String, Setting>,
    findings: Vec<Finding>,
}

impl Values {
    pub(super) fn new(settings: BTreeMap<String, Setting>, findings: Vec<Finding>) -> Self {
        let mut values = Self { settings, findings };
        values.check_kinds();
        values
    }

    pub(super) fn into_findings(self) -> Vec<Finding> {
        self.findings
    }

    /// Notes an error at the place where `key` was set.
    pub(super) fn refuse(&mut self, key: &str, text: impl Into<String>) {
        self.note(key, Severity::Error, text.into());
    }

    /// Notes a warning at the place where `key` was set.
    pub(super) fn warn(&mut self, key: &str, text: impl Into<String>) {
        self.note(key, Severity::Warning, text.into());
    }

    /// Whether somebody set it to something.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.settings.get(key).is_some_and(|setting| !setting.value.is_empty())
    }

    /// The text in force; empty when there is none.
    pub(super) fn text(&self, key: &str) -> String {
        match self.settings.get(key) {
            Some(setting) if !setting.value.is_empty() => setting.value.clone(),
            _ => default_of(key).to_owned(),
        }
    }

    /// `None` when nobody set it and there is no default.
    pub(super) fn optional_text(&self, key: &str) -> Option<String> {
        Some(self.text(key)).filter(|text| !text.is_empty())
    }

    /// The number in force, if there is one.
    pub(super) fn optional_number(&self, key: &str) -> Option<i64> {
        self.text(key).parse().ok().or_else(|| default_of(key).parse().ok())
    }

    /// The number in force; for keys with a default.
    pub(super) fn number(&self, key: &str) -> i64 {
        self.optional_number(key).unwrap_or_default()
    }

    /// A number whose range in the table fits the type asked for; clamped otherwise.
    pub(super) fn count<T: TryFrom<i64> + Bounded>(&self, key: &str) -> T {
        T::try_from(self.number(key)).unwrap_or(T::LARGEST)
    }

    pub(super) fn millis(&self, key: &str) -> Duration {
        Duration::from_millis(self.number(key).try_into().unwrap_or(0))
    }

    pub(super) fn flag(&self, key: &str) -> bool {
        self.text(key).eq_ignore_ascii_case("true")
    }

    /// The parts of a comma separated list, trimmed, empty ones left out.
    pub(super) fn list(&self, key: &str) -> Vec<String> {
        self.text(key).split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    fn note(&mut self, key: &str, severity: Severity, text: String) {
        let origin = self.settings.get(key).map_or(Origin::Default, |setting| setting.origin.clone());
        self.findings.push(Finding { origin, severity, text });
    }

    fn check_kinds(&mut self) {
        let mut findings = Vec::new();
        for (name, setting) in &self.settings {
            let Some(key) = keys::served(name) else { continue };
            if setting.value.is_empty() {
                continue;
            }
            let value = &setting.value;
            let wrong = match key.kind {
                Kind::Number(min, max) => match value.parse::<i64>() {
                    Ok(number) if (min..=max).contains(&number) => None,
                    Ok(number) => Some(format!("{name} ({number}) must lie between {min} and {max}")),
                    Err(_) => Some(format!("{name} \"{value}\" is not a whole number")),
                },
                Kind::Bool => (!value.eq_ignore_ascii_case("true") && !value.eq_ignore_ascii_case("false"))
                    .then(|| format!("{name} \"{value}\" is neither true nor false")),
                Kind::OneOf(allowed) => (!allowed.contains(&value.as_str()))
                    .then(|| format!("{name} \"{value}\" is not served; one of: {}", allowed.join(", "))),
                Kind::Text => None,
            };
            if let Some(text) = wrong {
                findings.push(Finding { origin: setting.origin.clone(), severity: Severity::Error, text });
            }
        }
        self.findings.append(&mut findings);
    }
}

/// The largest value of a number type.
pub(super) trait Bounded {
    const LARGEST: Self;
}

macro_rules! bounded {
    ($($t:ty)*) => { $(impl Bounded for $t { const LARGEST: Self = <$t>::MAX; })* };
}
bounded!(i16 i32 u16 u32 u64 usize);

fn default_of(key: &str) -> &'static str {
    keys::served(key).map_or("", |key| key.default)
}
