//! What stands behind the `?`: known parameters only, because a typo must not return "everything".

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::ApiError;

/// Parameters of every read.
pub const ALWAYS: &[&str] = &[
    "consistency",
    "min_metadata_offset",
    "timeout_ms",
    "fields",
    "include_authorized_operations",
    "includeAuthorizedOperations",
];

/// Parameters of every list.
pub const LIST: &[&str] = &["page_size", "page_token", "sort"];

/// Largest `page_size`.
const PAGE_MAX: usize = 5_000;

/// The parameters of one request, all of them known.
#[derive(Debug, Default)]
pub struct Params {
    given: BTreeMap<String, Vec<String>>,
}

impl Params {
    /// Accepts the pairs of a query string.
    ///
    /// # Errors
    /// 400 for a name that is neither in `allowed` nor one of every read.
    pub fn new(pairs: Vec<(String, String)>, allowed: &[&[&str]]) -> Result<Self, ApiError> {
        let mut given: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in pairs {
            let known = || allowed.iter().copied().flatten().chain(ALWAYS).copied();
            if !known().any(|known| known == name) {
                let mut names: Vec<&str> = known().collect();
                names.sort_unstable();
                return Err(ApiError::malformed(format!(
                    "unknown query parameter \"{name}\"; this path knows: {}",
                    names.join(", ")
                )));
            }
            given.entry(name).or_default().push(value);
        }
        Ok(Self { given })
    }

    /// The last value of a parameter.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.given.get(name).and_then(|values| values.last()).map(String::as_str)
    }

    /// # Errors
    /// 400 when it is no number of this type.
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, ApiError> {
        self.text(name)
            .map(|text| text.parse().map_err(|_| ApiError::malformed(format!("{name}: \"{text}\" is no valid number"))))
            .transpose()
    }

    /// # Errors
    /// 400 when it is neither true nor false.
    pub fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.text(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(ApiError::malformed(format!("{name}: \"{other}\" is neither true nor false"))),
        }
    }

    /// One of some words.
    ///
    /// # Errors
    /// 400 when it is another word.
    pub fn word<'a>(&self, name: &str, allowed: &[&'a str], default: &'a str) -> Result<&'a str, ApiError> {
        let Some(text) = self.text(name) else { return Ok(default) };
        let found = allowed.iter().find(|word| **word == text);
        found
            .copied()
            .ok_or_else(|| ApiError::malformed(format!("{name}: \"{text}\" is not one of: {}", allowed.join(", "))))
    }

    /// A filter: commas are OR, repetition is AND, `*` stands for anything. `allowed`: the only words that make sense.
    ///
    /// # Errors
    /// 400 for a word outside `allowed`, unless it holds a `*`.
    pub fn filter(&self, name: &str, allowed: Option<&[&str]>) -> Result<Filter, ApiError> {
        let mut all = Vec::new();
        for value in self.given.get(name).into_iter().flatten() {
            let any: Vec<String> = value.split(',').map(|part| part.trim().to_owned()).collect();
            if let Some(allowed) = allowed {
                for word in &any {
                    if !word.contains('*') && !allowed.contains(&word.as_str()) {
                        let known = allowed.join(", ");
                        return Err(ApiError::malformed(format!("{name}: \"{word}\" is not one of: {known}")));
                    }
                }
            }
            all.push(any);
        }
        Ok(Filter { all })
    }

    /// A filter over whole numbers, such as broker ids.
    ///
    /// # Errors
    /// 400 for a part that is no number.
    pub fn number_filter(&self, name: &str) -> Result<Filter, ApiError> {
        let filter = self.filter(name, None)?;
        for part in filter.all.iter().flatten() {
            if part.parse::<i64>().is_err() {
                return Err(ApiError::malformed(format!("{name}: \"{part}\" is no whole number")));
            }
        }
        Ok(filter)
    }

    /// A point in time, see [`crate::time::parse`].
    ///
    /// # Errors
    /// 400 when it is none.
    pub fn time(&self, name: &str, now_ms: i64) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        crate::time::parse(text, now_ms).map(Some).ok_or_else(|| {
            ApiError::malformed(format!(
                "{name}: \"{text}\" is no time; use -24h, epoch milliseconds or 2026-01-01T00:00:00Z"
            ))
        })
    }

    /// `timeout_ms`, or `default`; at most a minute.
    ///
    /// # Errors
    /// 400 when it is no number.
    pub fn timeout(&self, default: Duration) -> Result<Duration, ApiError> {
        Ok(self.number("timeout_ms")?.map_or(default, |ms: u64| Duration::from_millis(ms.min(60_000))))
    }

    /// `fields`: the names to keep.
    pub fn fields(&self) -> Option<Vec<&str>> {
        let values = self.given.get("fields")?;
        Some(values.iter().flat_map(|value| value.split(',')).map(str::trim).filter(|name| !name.is_empty()).collect())
    }

    /// `sort`: field, and whether downwards.
    pub fn sort(&self) -> Option<(&str, bool)> {
        let text = self.text("sort")?;
        Some(text.strip_prefix('-').map_or((text, false), |field| (field, true)))
    }

    /// `page_size` and where the page begins.
    ///
    /// # Errors
    /// 400 for a size outside 1 to 5000, a token that is none of ours, or a token without a size.
    pub fn page(&self) -> Result<Option<Page>, ApiError> {
        let size: Option<usize> = self.number("page_size")?;
        let token = self.text("page_token");
        let Some(size) = size else {
            return match token {
                Some(_) => Err(ApiError::malformed("page_token needs the page_size it was given with")),
                None => Ok(None),
            };
        };
        if !(1..=PAGE_MAX).contains(&size) {
            return Err(ApiError::malformed(format!("page_size ({size}) must lie between 1 and {PAGE_MAX}")));
        }
        let start = match token {
            None => PageStart::Beginning,
            Some(token) => PageStart::from_token(token)
                .ok_or_else(|| ApiError::malformed("page_token is not one that metadata.next gave"))?,
        };
        Ok(Some(Page { size, start }))
    }

    /// The query string again, with another `page_token`.
    pub fn with_token(&self, token: &str) -> String {
        let mut out = String::new();
        let pairs = self.given.iter().flat_map(|(name, values)| values.iter().map(move |value| (name.as_str(), value)));
        for (name, value) in pairs.filter(|(name, _)| *name != "page_token") {
            out.push_str(name);
            out.push('=');
            encode(value, &mut out);
            out.push('&');
        }
        out.push_str("page_token=");
        out.push_str(token);
        out
    }
}

/// Percent-encodes what is not unreserved.
pub fn encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(byte.into()),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
}

/// Words that a value must match; empty lets everything through.
#[derive(Debug, Default)]
pub struct Filter {
    /// All of these, of each any.
    all: Vec<Vec<String>>,
}

impl Filter {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether a single value passes.
    pub fn admits(&self, value: &str) -> bool {
        self.admits_any(&[value])
    }

    /// Whether a thing with several values (states, brokers) passes: each group must match one of them.
    pub fn admits_any(&self, values: &[&str]) -> bool {
        self.all.iter().all(|any| any.iter().any(|pattern| values.iter().any(|value| glob(pattern, value))))
    }

    /// Whether a number passes.
    pub fn admits_number(&self, value: Option<i32>) -> bool {
        self.is_empty() || value.is_some_and(|value| self.admits(&value.to_string()))
    }

    /// Whether one of some numbers passes.
    pub fn admits_numbers(&self, values: impl Iterator<Item = i32>) -> bool {
        let texts: Vec<String> = values.map(|value| value.to_string()).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        self.admits_any(&texts)
    }
}

/// Whether `text` matches `pattern`, in which `*` stands for any run of characters.
fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// A page of a list.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    pub size: usize,
    pub start: PageStart,
}

/// Where a page begins. Opaque to callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageStart {
    Beginning,
    /// In key order: after this key, which is stable while rows come and go.
    After(String),
    /// Sorted by something else: this many rows on.
    Skip(usize),
}

impl PageStart {
    /// As `page_token` carries it.
    pub fn token(&self) -> String {
        let text = match self {
            Self::Beginning => return String::new(),
            Self::After(key) => format!("k{key}"),
            Self::Skip(rows) => format!("n{rows}"),
        };
        text.bytes().map(|byte| format!("{byte:02x}")).collect()
    }

    fn from_token(token: &str) -> Option<Self> {
        let digits = token.as_bytes().chunks_exact(2);
        if token.is_empty() || !digits.remainder().is_empty() {
            return None;
        }
        let bytes: Option<Vec<u8>> =
            digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect();
        let text = String::from_utf8(bytes?).ok()?;
        match text.split_at_checked(1)? {
            ("k", key) => Some(Self::After(key.to_owned())),
            ("n", rows) => Some(Self::Skip(rows.parse().ok()?)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(pairs: &[(&str, &str)]) -> Result<Params, ApiError> {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Params::new(pairs, &[LIST, &["state", "topic", "since"]])
    }

    #[test]
    fn a_typo_in_a_parameter_is_400_and_names_the_known_ones() {
        let error = params(&[("stat", "OFFLINE")]).unwrap_err();
        assert_eq!((error.status.as_u16(), error.error_code), (400, 400));
        assert!(error.message.contains("unknown query parameter \"stat\"") && error.message.contains("state"));
    }

    #[test]
    fn commas_are_or_and_repetition_is_and() {
        let given = params(&[("state", "OFFLINE,UNDER_MIN_ISR"), ("state", "ONLINE"), ("topic", "orders*,x")]).unwrap();
        let states = given.filter("state", None).unwrap();
        assert!(states.admits_any(&["ONLINE", "UNDER_MIN_ISR"]));
        assert!(!states.admits_any(&["ONLINE"]));
        let topics = given.filter("topic", None).unwrap();
        assert!(topics.admits("orders-eu") && topics.admits("x") && !topics.admits("xx"));
    }

    #[test]
    fn a_filter_word_that_means_nothing_is_400() {
        let given = params(&[("state", "OFLINE")]).unwrap();
        assert!(given.filter("state", Some(&["OFFLINE"])).unwrap_err().message.contains("\"OFLINE\" is not one of"));
    }

    #[test]
    fn stars_match_any_run() {
        for (pattern, text, matches) in [
            ("a*c", "abbc", true),
            ("a*c", "ac", true),
            ("a*c", "acd", false),
            ("*b*", "abc", true),
            ("*", "", true),
            ("a*a", "a", false),
            ("abc", "abc", true),
        ] {
            assert_eq!(glob(pattern, text), matches, "{pattern} {text}");
        }
    }

    #[test]
    fn page_tokens_read_back() {
        for start in [PageStart::After("orders\u{0}0000000007".into()), PageStart::Skip(40)] {
            let given = params(&[("page_size", "10"), ("page_token", &start.token())]).unwrap();
            assert_eq!(given.page().unwrap(), Some(Page { size: 10, start }));
        }
        assert!(params(&[("page_size", "0")]).unwrap().page().is_err());
        assert!(params(&[("page_size", "1"), ("page_token", "zz")]).unwrap().page().is_err());
        assert!(params(&[("page_token", "6b")]).unwrap().page().is_err());
    }

    #[test]
    fn the_next_page_keeps_the_other_parameters() {
        let given = params(&[("state", "A,B"), ("page_size", "2"), ("page_token", "6b61")]).unwrap();
        assert_eq!(given.with_token("ff"), "page_size=2&state=A%2CB&page_token=ff");
    }
}
