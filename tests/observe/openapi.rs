//! The API's document against a real cluster: every example is sent, every answer is held against its schema.

use highwater_tests::cluster::Cluster;
use serde_json::{Value, json};

/// What a documented call of a node answered.
struct Answer {
    status: u16,
    media: String,
    body: Value,
}

/// The cluster that is called, and what is wrong with its answers.
struct Replay<'a> {
    cluster: &'a Cluster,
    document: Value,
    client: reqwest::Client,
    calls: usize,
    wrong: Vec<String>,
}

impl Replay<'_> {
    /// Sends a request to each node in turn.
    async fn call(&mut self, method: &str, target: &str, body: Option<&Value>) -> Answer {
        let node = self.calls % self.cluster.members.len();
        self.calls += 1;
        let url = format!("http://127.0.0.1:{}{target}", self.cluster.members[node].http_port);
        let mut request = self.client.request(method.to_uppercase().parse().unwrap(), url);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let media = response.headers().get("content-type").map_or("", |media| media.to_str().unwrap()).to_owned();
        // A stream has no end.
        let text = if media.starts_with("text/event-stream") { String::new() } else { response.text().await.unwrap() };
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Answer { status, media, body }
    }

    /// Holds an answer against what is documented for it.
    fn check(&mut self, what: &str, operation: &Value, answer: &Answer, shaped: bool) {
        let documented = &operation["responses"][answer.status.to_string()];
        if documented.is_null() {
            self.wrong.push(format!("{what}: status {} is not documented: {}", answer.status, answer.body));
            return;
        }
        if answer.status >= 400 && answer.body["error_code"].is_u64() {
            let codes = documented["x-error-codes"].as_array().cloned().unwrap_or_default();
            if !codes.contains(&answer.body["error_code"]) {
                self.wrong.push(format!("{what}: error_code is not documented: {}", answer.body));
            }
        }
        let Some(content) = documented["content"].as_object() else {
            if answer.body != json!("") {
                self.wrong.push(format!("{what}: a body where none is documented: {}", answer.body));
            }
            return;
        };
        let Some(content) = content.get(&answer.media) else {
            self.wrong.push(format!("{what}: media type {:?} is not documented", answer.media));
            return;
        };
        if shaped && let Err(why) = fits(&self.document, &content["schema"], &answer.body) {
            self.wrong.push(format!("{what}: {why}\n    in {}", answer.body));
        }
    }
}

/// Whether a value fits a schema. Knows the keywords that the document uses, and refuses any other. An object with
/// properties has no others: the schemas are of structs.
fn fits(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let Value::Object(schema) = schema else {
        return if schema == &json!(false) { Err("nothing fits".to_owned()) } else { Ok(()) };
    };
    let fails = |why: String| Err(format!("{why}: {value}"));
    for (keyword, says) in schema {
        match keyword.as_str() {
            "$ref" => {
                let target = says.as_str().and_then(|reference| document.pointer(&reference[1..]));
                fits(document, target.ok_or_else(|| format!("{says} leads nowhere"))?, value)?;
            }
            "type" => {
                let kinds = says.as_array().cloned().unwrap_or_else(|| vec![says.clone()]);
                if !kinds.iter().any(|kind| is_a(kind.as_str().unwrap(), value)) {
                    return fails(format!("not of type {says}"));
                }
            }
            "const" if says != value => return fails(format!("not {says}")),
            "enum" if !says.as_array().unwrap().contains(value) => return fails(format!("not one of {says}")),
            "minimum" if value.is_number() && value.as_f64() < says.as_f64() => return fails(format!("below {says}")),
            "maximum" if value.is_number() && value.as_f64() > says.as_f64() => return fails(format!("above {says}")),
            "maxItems" if value.as_array().is_some_and(|items| items.len() as u64 > says.as_u64().unwrap()) => {
                return fails(format!("more than {says} items"));
            }
            "minItems" if value.as_array().is_some_and(|items| (items.len() as u64) < says.as_u64().unwrap()) => {
                return fails(format!("fewer than {says} items"));
            }
            "oneOf" | "anyOf" => {
                let tried: Vec<_> = says.as_array().unwrap().iter().map(|one| fits(document, one, value)).collect();
                let fitting = tried.iter().filter(|one| one.is_ok()).count();
                if fitting == 0 || (keyword == "oneOf" && fitting > 1) {
                    return fails(format!("{fitting} of {keyword} fit: {tried:?}"));
                }
            }
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    fits(document, says, item)?;
                }
            }
            "required" if value.is_object() => {
                let lacking = says.as_array().unwrap().iter().find(|name| value.get(name.as_str().unwrap()).is_none());
                if let Some(name) = lacking {
                    return fails(format!("{name} is missing"));
                }
            }
            "properties" => {
                for (name, member) in value.as_object().into_iter().flatten() {
                    match says.get(name) {
                        Some(schema) => fits(document, schema, member).map_err(|why| format!("{name}: {why}"))?,
                        None => return fails(format!("{name} is not documented")),
                    }
                }
            }
            "const" | "enum" | "minimum" | "maximum" | "maxItems" | "minItems" | "required" => {}
            // Said in other words, or for people.
            "additionalProperties" if says.is_boolean() => {}
            "description" | "title" | "format" | "default" => {}
            other => return Err(format!("the schema says {other}, which this test does not understand")),
        }
    }
    Ok(())
}

fn is_a(kind: &str, value: &Value) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type {other}"),
    }
}

fn of<'a>(operation: &'a Value, place: &str) -> Vec<&'a Value> {
    let all = operation["parameters"].as_array().unwrap().iter();
    all.filter(|parameter| parameter["in"] == place).collect()
}

/// Replays the whole document.
pub async fn replay(cluster: &Cluster) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://127.0.0.1:{}/openapi.json", cluster.members[0].http_port);
    let document: Value = client.get(url).send().await.unwrap().json().await.unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap().clone();
    let mut replay = Replay { cluster, document, client, calls: 0, wrong: Vec::new() };
    let mut operations = 0;
    // What reads first, what removes last.
    for method in ["get", "post", "put", "patch", "delete"] {
        for (path, methods) in &paths {
            let Some(operation) = methods.get(method) else { continue };
            operations += 1;
            one(&mut replay, method, path, operation).await;
        }
    }
    assert!(operations > 20, "{operations} operations");
    assert!(replay.wrong.is_empty(), "\n{}", replay.wrong.join("\n"));
}

async fn one(replay: &mut Replay<'_>, method: &str, path: &str, operation: &Value) {
    let what = format!("{} {path}", method.to_uppercase());
    let mut target = path.to_owned();
    for parameter in of(operation, "path") {
        let text = parameter["example"].as_str().unwrap();
        target = target.replace(&format!("{{{}}}", parameter["name"].as_str().unwrap()), text);
    }
    let examples = operation["requestBody"]["content"]["application/json"]["examples"].as_object();
    let bodies: Vec<Option<&Value>> = match examples {
        None => vec![None],
        Some(examples) => examples.values().map(|example| Some(&example["value"])).collect(),
    };
    for (at, body) in bodies.iter().enumerate() {
        let answer = replay.call(method, &target, *body).await;
        let expected = operation["x-example-status"].as_u64().filter(|_| at == 0);
        let fits = expected.map_or((200..300).contains(&answer.status), |status| status == u64::from(answer.status));
        if !fits {
            replay.wrong.push(format!("{what}: example {} was answered {}: {}", at + 1, answer.status, answer.body));
        }
        replay.check(&what, operation, &answer, true);
    }
    let known: Vec<&str> = of(operation, "query").iter().map(|one| one["name"].as_str().unwrap()).collect();
    if method == "get" {
        for parameter in of(operation, "query") {
            let (name, value) = (parameter["name"].as_str().unwrap(), parameter["example"].as_str().unwrap());
            let needs = if name == "page_token" { "page_size=1&" } else { "" };
            let answer = replay.call("get", &format!("{target}?{needs}{name}={value}"), None).await;
            let what = format!("{what}?{name}={value}");
            if !(200..300).contains(&answer.status) {
                replay.wrong.push(format!("{what}: {} {}", answer.status, answer.body));
            }
            replay.check(&what, operation, &answer, name != "fields");
        }
    }
    // The node itself tells what it knows: neither may know more.
    let body = bodies.first().copied().flatten();
    let answer = replay.call(method, &format!("{target}?zz=1"), body).await;
    let told = answer.body["message"].as_str().unwrap_or_default();
    let told = told.split_once("this path knows: ").map_or("", |(_, names)| names);
    let told: Vec<&str> = told.split(", ").filter(|name| !name.is_empty()).collect();
    let below = path.starts_with("/v3");
    let mut expected = if below || method != "get" { known.clone() } else { told.clone() };
    expected.sort_unstable();
    if answer.status != 400 || told != expected || known.iter().any(|name| !told.contains(name)) {
        replay
            .wrong
            .push(format!("{what}: documents ?{known:?}, but said to ?zz=1: {} {}", answer.status, answer.body));
    }
    replay.check(&format!("{what}?zz=1"), operation, &answer, true);
    if path.starts_with("/v3/clusters/{cluster_id}") {
        let elsewhere = target.replacen("/-", "/another", 1);
        let answer = replay.call(method, &elsewhere, body).await;
        if (answer.status, answer.body["error_code"].as_u64()) != (404, Some(404)) {
            replay.wrong.push(format!("{what} of another cluster: {} {}", answer.status, answer.body));
        }
        replay.check(&format!("{what} of another cluster"), operation, &answer, true);
    }
}
