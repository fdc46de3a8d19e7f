//! `/docs`: the document as a page for people. Written whole by the node: no script, nothing fetched from elsewhere.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::JSON;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:0 auto;padding:1rem 2rem;color:#1b1f24}\
    code,pre{font:13px/1.5 ui-monospace,monospace}pre{background:#f4f5f7;padding:.6rem .8rem;overflow-x:auto}\
    nav a{margin-right:1rem}details{border-top:1px solid #dfe2e6;padding:.4rem 0}summary{cursor:pointer}\
    .method{display:inline-block;min-width:4.2rem;font-weight:700}.get{color:#0a6}.post,.put,.patch{color:#b60}\
    .delete{color:#c22}.about{color:#57606a}table{border-collapse:collapse;margin:.4rem 0}\
    td,th{text-align:left;vertical-align:top;padding:.15rem 1rem .15rem 0;border-bottom:1px solid #eef0f2}";

/// Writes the page; the document is the one that `/openapi.json` answers.
pub fn write(document: &Value) -> String {
    let info = &document["info"];
    let mut tags: BTreeMap<&str, Vec<(&str, &str, &Value)>> = BTreeMap::new();
    for (path, methods) in members(&document["paths"]) {
        for (method, operation) in members(methods) {
            let tag = operation["tags"][0].as_str().unwrap_or_default();
            tags.entry(tag).or_default().push((path, method, operation));
        }
    }
    let mut out = String::with_capacity(256 * 1024);
    let title = text(&info["title"]);
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title} {}</h1>\n\
         <p>{}</p>\n<p>For programs: <a href=\"/openapi.json\">/openapi.json</a>, \
         <a href=\"/openapi.yaml\">/openapi.yaml</a>.</p>\n<nav>",
        text(&info["version"]),
        text(&info["description"]),
    );
    for tag in tags.keys() {
        let tag = escaped(tag);
        let _ = write!(out, "<a href=\"#tag-{tag}\">{tag}</a>");
    }
    out.push_str("<a href=\"#shapes\">shapes</a></nav>\n");
    for (tag, operations) in &tags {
        let tag = escaped(tag);
        let _ = writeln!(out, "<section id=\"tag-{tag}\"><h2>{tag}</h2>");
        for (path, method, operation) in operations {
            self::operation(&mut out, path, method, operation);
        }
        out.push_str("</section>\n");
    }
    out.push_str("<section id=\"shapes\"><h2>Shapes</h2>\n");
    for (name, schema) in members(&document["components"]["schemas"]) {
        let name = escaped(name);
        let about = schema["description"].as_str().map(escaped).unwrap_or_default();
        let _ = writeln!(out, "<h3 id=\"shape-{name}\">{name}</h3><p class=\"about\">{about}</p>");
        if schema["properties"].is_object() { fields(&mut out, schema) } else { out.push_str(&shape(schema)) }
    }
    out.push_str("</section>\n</body></html>\n");
    out
}

fn operation(out: &mut String, path: &str, method: &str, operation: &Value) {
    let _ = writeln!(
        out,
        "<details id=\"{}\"><summary><span class=\"method {method}\">{}</span> <code>{}</code> <span class=\"about\">{}\
         </span></summary>",
        text(&operation["operationId"]),
        method.to_uppercase(),
        escaped(path),
        text(&operation["summary"]),
    );
    let examples: Vec<&Value> =
        members(&operation["requestBody"]["content"][JSON]["examples"]).map(|(_, e)| e).collect();
    let _ = writeln!(out, "<pre>{}</pre>", escaped(&curl(path, method, operation, examples.first().copied())));
    let parameters = operation["parameters"].as_array().map_or(&[][..], Vec::as_slice);
    if !parameters.is_empty() {
        out.push_str("<table><tr><th>parameter</th><th>in</th><th>type</th><th>meaning</th></tr>\n");
        for one in parameters {
            let (name, place, about) = (text(&one["name"]), text(&one["in"]), text(&one["description"]));
            let kind = shape(&one["schema"]);
            let _ =
                writeln!(out, "<tr><td><code>{name}</code></td><td>{place}</td><td>{kind}</td><td>{about}</td></tr>");
        }
        out.push_str("</table>\n");
    }
    if !examples.is_empty() {
        let _ = writeln!(out, "<p>Body: {}</p>", shape(&operation["requestBody"]["content"][JSON]["schema"]));
        for example in examples {
            let body = serde_json::to_string_pretty(&example["value"]).unwrap_or_default();
            let _ = writeln!(out, "<p class=\"about\">{}</p><pre>{}</pre>", text(&example["summary"]), escaped(&body));
        }
    }
    out.push_str("<table><tr><th>status</th><th>meaning</th><th>body</th></tr>\n");
    for (status, answer) in members(&operation["responses"]) {
        let bodies: Vec<String> = members(&answer["content"])
            .map(|(media, content)| match content.get("schema") {
                Some(schema) => shape(schema),
                None => format!("<code>{}</code>", escaped(media)),
            })
            .collect();
        let about = text(&answer["description"]);
        let _ = writeln!(out, "<tr><td>{}</td><td>{about}</td><td>{}</td></tr>", escaped(status), bodies.join(", "));
    }
    out.push_str("</table></details>\n");
}

/// The call as it is typed.
fn curl(path: &str, method: &str, operation: &Value, example: Option<&Value>) -> String {
    let mut path = path.to_owned();
    for one in operation["parameters"].as_array().into_iter().flatten().filter(|one| one["in"] == "path") {
        let (name, value) = (one["name"].as_str().unwrap_or_default(), one["example"].as_str().unwrap_or_default());
        path = path.replace(&format!("{{{name}}}"), value);
    }
    let verb = if method == "get" { String::new() } else { format!(" -X {}", method.to_uppercase()) };
    let body = example.map_or_else(String::new, |example| {
        format!(" -H 'content-type: {JSON}' -d '{}'", example["value"].to_string().replace('\'', "'\\''"))
    });
    format!("curl -s{verb} localhost:8082{path}{body}")
}

/// A table of an object's fields.
fn fields(out: &mut String, schema: &Value) {
    let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
    out.push_str("<table>");
    for (name, field) in members(&schema["properties"]) {
        let always = if required.iter().any(|one| one == name) { "" } else { " (not always)" };
        let about = field["description"].as_str().map(escaped).unwrap_or_default();
        let name = escaped(name);
        let _ = writeln!(out, "<tr><td><code>{name}</code>{always}</td><td>{}</td><td>{about}</td></tr>", shape(field));
    }
    out.push_str("</table>\n");
}

/// A schema in a few words; what has a name is a link to it.
fn shape(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = escaped(reference.rsplit('/').next().unwrap_or(reference));
        return format!("<a href=\"#shape-{name}\">{name}</a>");
    }
    if let Some(value) = schema.get("const") {
        return format!("<code>{}</code>", escaped(&value.to_string()));
    }
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<String> = words.iter().map(|word| format!("<code>{}</code>", text(word))).collect();
        return words.join(" or ");
    }
    for keyword in ["oneOf", "anyOf"] {
        if let Some(all) = schema[keyword].as_array() {
            return all.iter().map(shape).collect::<Vec<_>>().join(" or ");
        }
    }
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().map(text).collect::<Vec<_>>().join(" or "),
        Value::Null => "anything".to_owned(),
        kind => text(kind),
    };
    if let Some(items) = schema.get("items") {
        return format!("{kinds} of {}", shape(items));
    }
    let Some(properties) = schema["properties"].as_object() else { return kinds };
    let inner: Vec<String> =
        properties.iter().map(|(name, field)| format!("<code>{}</code>: {}", escaped(name), shape(field))).collect();
    format!("{kinds} {{ {} }}", inner.join(", "))
}

fn members(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter).map(|(name, member)| (name.as_str(), member))
}

/// A value as text between tags.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => escaped(text),
        other => escaped(&other.to_string()),
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{openapi, routes};

    /// What stands in the values of an attribute.
    fn values<'a>(page: &'a str, attribute: &str) -> BTreeSet<&'a str> {
        page.split(&format!(" {attribute}=\"")).skip(1).filter_map(|rest| rest.split('"').next()).collect()
    }

    #[test]
    fn the_page_holds_every_operation_fetches_nothing_and_no_link_leads_nowhere() {
        let routes = routes::all();
        let document = openapi::document(&routes, "1.2.3");
        let page = write(&document);
        let ids = values(&page, "id");
        for (path, methods) in members(&document["paths"]) {
            for (method, operation) in members(methods) {
                let id = operation["operationId"].as_str().unwrap();
                assert!(ids.contains(id), "{method} {path} is not on the page");
            }
        }
        for link in values(&page, "href") {
            match link.strip_prefix('#') {
                Some(id) => assert!(ids.contains(id), "#{id} leads nowhere"),
                None => assert!(routes.iter().any(|route| route.path == link), "{link} is no route"),
            }
        }
        for word in ["<script", "<link", "<img", "<iframe", " src=", "@import", "url("] {
            assert!(!page.contains(word), "{word} on the page");
        }
        assert_eq!(page.matches("<details").count(), page.matches("</details>").count());
        assert!(page.contains("curl -s -X POST localhost:8082/v3/clusters/-/topics -H"), "{}", &page[..2_000]);
    }

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escaped("<a b=\"c\">&'"), "&lt;a b=&quot;c&quot;&gt;&amp;&#39;");
    }
}
