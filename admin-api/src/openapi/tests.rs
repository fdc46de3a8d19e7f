//! What every route must bring, that the document says all of it, and that adopted routes keep their shapes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::*;

/// Taken over from REST v3 and Confluent Server.
const ADOPTED: &str = include_str!("rest_v3.txt");

fn name(route: &Route) -> String {
    format!("{} {}", route.method.to_uppercase(), route.path)
}

#[test]
fn a_route_lacks_nothing_that_its_documentation_needs() {
    let mut lacks = Vec::new();
    let mut seen = BTreeSet::new();
    for route in routes::all() {
        let mut say = |what: String| lacks.push(format!("{}: {what}", name(&route)));
        if !seen.insert(name(&route)) {
            say("is listed twice".to_owned());
        }
        if route.summary.len() < 10 {
            say("needs a summary that says what it is for".to_owned());
        }
        if route.answers.is_empty() {
            say("needs what it answers: .object::<T>(200), .list::<T>(kind), .empty(204) …".to_owned());
        }
        if matches!(route.method, "put" | "patch") && route.sent.is_none() {
            say("needs the body it takes, with an example: .takes::<T>(json!({ … }))".to_owned());
        }
        for segment in segments(&route.path) {
            if parameters::in_path(segment).is_none() {
                say(format!("needs {{{segment}}} described in openapi/parameters.rs, PATH"));
            }
        }
        for parameter in &route.parameters {
            if parameters::in_query(parameter).is_none() {
                say(format!("needs ?{parameter}= described in openapi/parameters.rs, QUERY"));
            }
        }
        for (parameter, _) in &route.example_path {
            if !segments(&route.path).any(|segment| segment == *parameter) {
                say(format!("has an example of {parameter}, which is not in its path"));
            }
        }
        for (status, code, _) in &route.failures {
            let begins = *code == u32::from(*status) || code / 100 == u32::from(*status);
            if !begins {
                say(format!("error_code {code} does not belong to status {status}"));
            }
        }
    }
    assert!(lacks.is_empty(), "\n{}", lacks.join("\n"));
}

/// The router is built from the list of routes alone, so nothing can be served that the document lacks.
#[test]
fn no_route_is_made_beside_the_list() {
    fn walk(path: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            let name = path.display().to_string();
            if path.is_dir() {
                walk(&path, found);
            } else if !name.ends_with("/routes.rs") && !name.ends_with("/peer.rs") && !name.ends_with("/tests.rs") {
                for (number, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
                    if line.contains(".route(") {
                        found.push(format!("{name}:{}: put it into `routes()` of its file: {line}", number + 1));
                    }
                }
            }
        }
    }
    let mut found = Vec::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn the_document_holds_every_route_once_and_every_reference_leads_somewhere() {
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(object) => {
                if let Some(Value::String(reference)) = object.get("$ref") {
                    found.insert(reference.clone());
                }
                object.values().for_each(|value| references(value, found));
            }
            Value::Array(array) => array.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let all = routes::all();
    let document = document(&all, "1.2.3");
    let mut documented = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            documented.insert(format!("{} {path}", method.to_uppercase()));
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "operationId {id} twice");
        }
    }
    assert_eq!(documented, all.iter().map(name).collect::<BTreeSet<_>>());
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(found.len() > 20, "{found:?}");
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
}

/// The properties and the required ones of an object's schema, through references; of a list: of its rows.
fn fields(document: &Value, schema: &Value) -> (BTreeSet<String>, BTreeSet<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        return fields(document, document.pointer(&reference[1..]).unwrap());
    }
    if let Some(either) = schema["oneOf"].as_array() {
        return fields(document, &either[0]);
    }
    if !schema["properties"]["data"].is_null() {
        return fields(document, &schema["properties"]["data"]["items"]);
    }
    let properties = schema["properties"].as_object().unwrap().keys().cloned().collect();
    let required = schema["required"].as_array().unwrap();
    (properties, required.iter().map(|name| name.as_str().unwrap().to_owned()).collect())
}

#[test]
fn adopted_routes_keep_their_statuses_and_fields() {
    let document = document(&routes::all(), "1.2.3");
    let mut wrong = Vec::new();
    for line in ADOPTED.lines().filter(|line| !line.starts_with('#')) {
        let (later, rest) = line.strip_prefix("later ").map_or((false, line), |rest| (true, rest));
        let mut words = rest.split_whitespace();
        let method = words.next().unwrap().to_lowercase();
        let path = words.next().unwrap().replacen('C', "/clusters/{cluster_id}", usize::from(!rest.contains(" /")));
        let operation = &document["paths"][format!("/v3{path}")][&method];
        if later {
            if !operation.is_null() {
                wrong.push(format!("{line}: it is served now, so take `later` away"));
            }
            continue;
        }
        if operation.is_null() {
            wrong.push(format!("{line}: is not served"));
            continue;
        }
        for status in words.next().unwrap().split(',') {
            let answer = &operation["responses"][status];
            if answer.is_null() {
                wrong.push(format!("{line}: status {status} is missing"));
            } else if status != "204" && status != "202" {
                let (known, required) = fields(&document, &answer["content"][JSON]["schema"]);
                for field in words.clone().filter(|field| !known.contains(*field) || !required.contains(*field)) {
                    wrong.push(format!("{line}: field {field} is missing or not always there"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
