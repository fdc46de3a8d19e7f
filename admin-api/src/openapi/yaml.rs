//! JSON values as YAML: block style, every string in double quotes, so that no word is taken for something else. Only what
//! the document needs; nothing is read here.

use serde_json::Value;

/// A value as a YAML document.
pub fn write(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(members) if !members.is_empty() => block(value, 0, &mut out),
        Value::Array(items) if !items.is_empty() => block(value, 0, &mut out),
        scalar => {
            out.push_str(&scalar.to_string());
            out.push('\n');
        }
    }
    out
}

/// A container that holds something, each of its lines behind `indent` spaces.
fn block(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                push_spaces(indent, out);
                if is_plain(name) {
                    out.push_str(name);
                } else {
                    out.push_str(&Value::from(name.as_str()).to_string());
                }
                out.push(':');
                if is_block(member) {
                    out.push('\n');
                    block(member, indent + 2, out);
                } else {
                    push_inline(member, out);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                let begins = out.len() + indent;
                if is_block(item) {
                    block(item, indent + 2, out);
                    // The first line of the item stands behind the dash.
                    out.replace_range(begins..begins + 2, "- ");
                } else {
                    push_spaces(indent, out);
                    out.push('-');
                    push_inline(item, out);
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(members) => !members.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// JSON's scalars and its empty containers mean the same in YAML 1.2.
fn push_inline(value: &Value, out: &mut String) {
    out.push(' ');
    out.push_str(&value.to_string());
    out.push('\n');
}

fn push_spaces(count: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', count));
}

/// Words that older readers take for truth or nothing.
const TAKEN: &[&str] = &["true", "false", "null", "yes", "no", "on", "off", "y", "n"];

/// Whether a key needs no quotes.
fn is_plain(name: &str) -> bool {
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let simple = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    begins && simple && !TAKEN.contains(&name.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn blocks_are_indented_and_whatever_could_be_mistaken_is_quoted() {
        let value = json!({
            "openapi": "3.1.0",
            "paths": { "/v3/{id}:alter": { "200": { "x-codes": [400, 40002], "none": {}, "empty": [] } } },
            "all": [{ "a": true, "b": { "c": null } }, [1, [2.5]], "- x: #y \"z\"\n", "no"],
            "on": "$ref",
        });
        // Keys of an object come in order of the alphabet.
        let expected = r##"all:
  - a: true
    b:
      c: null
  - - 1
    - - 2.5
  - "- x: #y \"z\"\n"
  - "no"
"on": "$ref"
openapi: "3.1.0"
paths:
  "/v3/{id}:alter":
    "200":
      empty: []
      none: {}
      x-codes:
        - 400
        - 40002
"##;
        assert_eq!(write(&value), expected);
        assert_eq!(write(&json!("a")), "\"a\"\n");
        assert_eq!(write(&json!([])), "[]\n");
    }

    /// Reads blocks back: lines with what stands before them, the first of them at `indent`.
    fn read(lines: &mut std::collections::VecDeque<(usize, String)>, indent: usize) -> Value {
        let (_, first) = lines.front().unwrap().clone();
        if let Some(key) = Some(first).filter(|first| !first.starts_with("- ")).and_then(|first| key_of(&first)) {
            let mut members = serde_json::Map::new();
            let mut key = Some(key);
            while let Some((name, rest)) = key {
                lines.pop_front();
                let inner = lines.front().map_or(0, |(indent, _)| *indent);
                let member = if rest.is_empty() { read(lines, inner) } else { serde_json::from_str(&rest).unwrap() };
                assert!(rest.is_empty() == (member.is_object() || member.is_array()) || rest == "{}" || rest == "[]");
                assert!(members.insert(name, member).is_none(), "a key comes twice");
                key = lines.front().filter(|(at, _)| *at == indent).and_then(|(_, line)| key_of(line));
            }
            return Value::Object(members);
        }
        let mut items = Vec::new();
        while let Some(item) = lines.front().filter(|(at, _)| *at == indent).and_then(|(_, l)| l.strip_prefix("- ")) {
            let item = item.to_owned();
            if item.starts_with("- ") || key_of(&item).is_some() {
                *lines.front_mut().unwrap() = (indent + 2, item);
                items.push(read(lines, indent + 2));
            } else {
                lines.pop_front();
                items.push(serde_json::from_str(&item).unwrap());
            }
        }
        Value::Array(items)
    }

    /// The key that a line begins with, and what stands behind it.
    fn key_of(line: &str) -> Option<(String, String)> {
        let mut strings = serde_json::Deserializer::from_str(line).into_iter::<String>();
        let (name, end) = match strings.next() {
            Some(Ok(name)) => (name, strings.byte_offset()),
            _ => (line.split(':').next()?.to_owned(), line.find(':')?),
        };
        Some((name, line[end..].strip_prefix(':')?.trim_start().to_owned()))
    }

    #[test]
    fn the_document_is_the_same_when_it_is_read_back() {
        let document = crate::openapi::document(&crate::routes::all(), "1.2.3");
        let text = write(&document);
        let lines = text.lines().map(|line| (line.len() - line.trim_start().len(), line.trim_start().to_owned()));
        assert_eq!(read(&mut lines.collect(), 0), document);
    }
}
