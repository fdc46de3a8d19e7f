//! Prometheus text, read strictly: every family has one head, says what `ops/metrics.md` says, and no series comes twice.

use std::collections::{BTreeMap, BTreeSet};

/// One family as `ops/metrics.md` lists it.
pub struct Listed {
    kind: String,
    labels: BTreeSet<String>,
    help: String,
}

/// The checked-in list.
pub fn listed() -> BTreeMap<String, Listed> {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/metrics.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
    rows.map(|row| {
        let [name, kind, labels, help] = row.split(" | ").collect::<Vec<_>>()[..] else { panic!("{row}") };
        let labels = labels.split(", ").filter(|label| !label.is_empty()).map(str::to_owned).collect();
        let listed = Listed { kind: kind.to_owned(), labels, help: help.to_owned() };
        (name.trim_end_matches('`').to_owned(), listed)
    })
    .collect()
}

/// What a node exposed: each series with its value.
#[derive(Debug, Default)]
pub struct Exposed {
    pub series: BTreeMap<String, f64>,
    pub families: BTreeSet<String>,
}

impl Exposed {
    /// Reads an exposition; what is wrong with it is said all at once.
    pub fn read(text: &str, listed: &BTreeMap<String, Listed>) -> Self {
        let mut exposed = Self::default();
        let mut wrong = Vec::new();
        let mut help: Option<(String, String)> = None;
        let mut open: Option<(String, String)> = None;
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, text) = rest.split_once(' ').unwrap();
                help = Some((name.to_owned(), text.to_owned()));
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                let text = help.take().filter(|(helped, _)| helped == name).map(|(_, text)| text);
                match listed.get(name) {
                    None => wrong.push(format!("{name} is not listed")),
                    Some(listed) if listed.kind != kind || Some(&listed.help) != text.as_ref() => {
                        wrong.push(format!("{name} is a {kind} that says {text:?}, not as listed"));
                    }
                    Some(_) => {}
                }
                if !exposed.families.insert(name.to_owned()) {
                    wrong.push(format!("{name} begins twice"));
                }
                open = Some((name.to_owned(), kind.to_owned()));
            } else {
                let (series, value) = line.rsplit_once(' ').unwrap();
                let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
                let family = open.as_ref().filter(|(open, kind)| {
                    let suffix = name.strip_prefix(open.as_str());
                    suffix == Some("") || (kind == "histogram" && matches!(suffix, Some("_bucket" | "_sum" | "_count")))
                });
                match family.and_then(|(family, _)| listed.get(family)) {
                    None => wrong.push(format!("a series outside its family: {line}")),
                    Some(listed) => {
                        for label in names(labels.trim_end_matches('}')) {
                            if label != "le" && !listed.labels.contains(&label) {
                                wrong.push(format!("label {label} is not listed: {line}"));
                            }
                        }
                    }
                }
                let value = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
                if exposed.series.insert(series.to_owned(), value).is_some() {
                    wrong.push(format!("twice: {series}"));
                }
            }
        }
        assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
        exposed
    }

    /// The sum of a family's series that carry all these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let carries = |series: &str| {
            let rest = series.strip_prefix(name).filter(|rest| rest.is_empty() || rest.starts_with('{'));
            rest.is_some_and(|rest| labels.iter().all(|(label, value)| rest.contains(&format!("{label}=\"{value}\""))))
        };
        self.series.iter().filter(|(series, _)| carries(series)).map(|(_, value)| value).sum()
    }

    /// Whether a series with these labels is there at all.
    pub fn has(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        self.series.keys().any(|series| {
            series.starts_with(name)
                && labels.iter().all(|(label, value)| series.contains(&format!("{label}=\"{value}\"")))
        })
    }
}

/// The names of labels; values may hold anything but a quote that is not escaped.
fn names(labels: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = labels;
    while let Some((name, after)) = rest.split_once("=\"") {
        names.push(name.trim_start_matches(',').to_owned());
        let mut escaped = false;
        let end = after.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        rest = &after[end.unwrap() + 1..];
    }
    names
}
