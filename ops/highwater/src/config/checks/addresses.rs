//! Where a node listens and whom it dials: listeners, voters, the admin API, and whether they go together.

use std::collections::BTreeMap;

use highwater_quorum::image::Endpoint;
use highwater_wire::BrokerId;

use super::super::values::Values;
use super::super::{HttpConfig, Listener, PartitionMetrics, Roles, is_loopback};
use super::roles;

/// The listeners of a node, sorted by what they are for.
pub(super) struct Listeners {
    pub kafka: Vec<Listener>,
    pub controller: Listener,
    pub inter_broker: String,
}

/// `NAME://host:port`
fn parse_listener(text: &str) -> Result<(String, String, u16), String> {
    let wrong = || format!("\"{text}\" is not NAME://host:port");
    let (name, address) = text.split_once("://").ok_or_else(wrong)?;
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| format!("\"{text}\": \"{port}\" is no port (0 to 65535)"))?;
    if name.is_empty() {
        return Err(wrong());
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Ok((name.to_uppercase(), host.to_owned(), port))
}

fn parse_listeners(values: &mut Values, key: &str) -> Vec<(String, String, u16)> {
    let mut out: Vec<(String, String, u16)> = Vec::new();
    for text in values.list(key) {
        match parse_listener(&text) {
            Ok(listener) => {
                if out.iter().any(|(name, ..)| *name == listener.0) {
                    values.refuse(key, format!("{key}: {} is listed twice", listener.0));
                } else {
                    out.push(listener);
                }
            }
            Err(why) => values.refuse(key, format!("{key}: {why}")),
        }
    }
    out
}

pub(super) fn listeners(values: &mut Values, roles: Roles) -> Option<Listeners> {
    let bound = parse_listeners(values, "listeners");
    let advertised = parse_listeners(values, "advertised.listeners");
    let controllers: Vec<String> =
        values.list("controller.listener.names").iter().map(|name| name.to_uppercase()).collect();
    for (i, (name, host, port)) in bound.iter().enumerate() {
        let clash = bound[..i].iter().find(|(_, other_host, other)| {
            *port != 0 && other == port && (host == other_host || host.is_empty() || other_host.is_empty())
        });
        if let Some((other, ..)) = clash {
            values.refuse("listeners", format!("listeners: {other} and {name} share port {port}"));
        }
    }
    protocols(values, &bound);
    for (name, host, _) in &advertised {
        if !bound.iter().any(|(bound, ..)| bound == name) {
            let text = format!("advertised.listeners: {name} is not among listeners; add it there or remove it here");
            values.refuse("advertised.listeners", text);
        }
        if host.is_empty() || host == "0.0.0.0" || host == "::" {
            let text =
                format!("advertised.listeners: {name} must name a host that others can dial, not every interface");
            values.refuse("advertised.listeners", text);
        }
    }
    let all: Vec<Listener> = bound
        .into_iter()
        .map(|(name, host, port)| {
            let told = advertised.iter().find(|(told, ..)| *told == name);
            let advertised = match told {
                Some((_, host, port)) => Endpoint { host: host.clone(), port: *port },
                None => Endpoint { host: dialable(&host), port },
            };
            Listener { name, host, port, advertised }
        })
        .collect();
    let (controller, kafka): (Vec<_>, Vec<_>) = all.into_iter().partition(|l| controllers.contains(&l.name));
    let Some(controller) = controller.into_iter().next() else {
        values.refuse("listeners", roles::no_controller_listener(roles, controllers.first().map(String::as_str)));
        return None;
    };
    if !roles.broker && roles.controller {
        roles::no_client_listeners(values, &kafka);
    }
    if roles.broker && kafka.is_empty() {
        values.refuse("listeners", "listeners has no listener for clients, such as PLAINTEXT://:9092");
        return None;
    }
    let inter_broker = match values.optional_text("inter.broker.listener.name") {
        Some(name) if roles.broker => name.to_uppercase(),
        _ => kafka.first().map(|first| first.name.clone()).unwrap_or_default(),
    };
    if roles.broker && !kafka.iter().any(|listener| listener.name == inter_broker) {
        let text = format!("inter.broker.listener.name ({inter_broker}) is not among the client listeners");
        values.refuse("inter.broker.listener.name", text);
    }
    for listener in kafka.iter().filter(|listener| !listener.is_loopback()) {
        let text = format!(
            "listener {}://{}:{} is reachable from other hosts and is PLAINTEXT: anybody who reaches it reads and \
             writes everything",
            listener.name, listener.host, listener.port
        );
        values.warn("listeners", text);
    }
    if !controller.is_loopback() {
        let text = format!(
            "listener {}://{}:{} is reachable from other hosts and is PLAINTEXT: anybody who reaches it commands the \
             cluster; keep it in a private network",
            controller.name, controller.host, controller.port
        );
        values.warn("listeners", text);
    }
    Some(Listeners { kafka, controller, inter_broker })
}

fn protocols(values: &mut Values, bound: &[(String, String, u16)]) {
    let mut map = BTreeMap::new();
    for entry in values.list("listener.security.protocol.map") {
        match entry.split_once(':') {
            Some((name, protocol)) => {
                map.insert(name.trim().to_uppercase(), protocol.trim().to_uppercase());
            }
            None => {
                let text = format!("listener.security.protocol.map: \"{entry}\" is not NAME:PROTOCOL");
                values.refuse("listener.security.protocol.map", text);
            }
        }
    }
    for (name, ..) in bound {
        // As Kafka: a listener that is named like a protocol speaks it.
        let protocol = map.get(name).cloned().unwrap_or_else(|| name.clone());
        match protocol.as_str() {
            "PLAINTEXT" => {}
            "SSL" | "SASL_SSL" | "SASL_PLAINTEXT" => {
                let text = format!("listener {name} speaks {protocol}, which is not served yet; use PLAINTEXT");
                values.refuse("listener.security.protocol.map", text);
            }
            _ if map.contains_key(name) => {
                let text = format!("listener.security.protocol.map: {name} has unknown protocol \"{protocol}\"");
                values.refuse("listener.security.protocol.map", text);
            }
            _ => {
                let text =
                    format!("listener {name} has no protocol: add {name}:PLAINTEXT to listener.security.protocol.map");
                values.refuse("listeners", text);
            }
        }
    }
}

/// The host to tell others when a listener is bound to `host`.
fn dialable(host: &str) -> String {
    match host {
        "" | "0.0.0.0" | "::" => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        other => other.to_owned(),
    }
}

pub(super) fn voters(
    values: &mut Values,
    node_id: Option<BrokerId>,
    roles: Roles,
    controller: Option<&Listener>,
) -> BTreeMap<BrokerId, Endpoint> {
    const KEY: &str = "controller.quorum.voters";
    let mut voters = BTreeMap::new();
    for text in values.list(KEY) {
        let parsed = text.split_once('@').and_then(|(id, address)| {
            let (host, port) = address.rsplit_once(':')?;
            let id = BrokerId::from_wire(id.trim().parse().ok()?)?;
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            Some((id, Endpoint { host, port: port.parse().ok()? }))
        });
        match parsed {
            Some((id, _)) if voters.contains_key(&id) => {
                values.refuse(KEY, format!("{KEY}: voter {id} is listed twice"))
            }
            Some((id, endpoint)) => {
                voters.insert(id, endpoint);
            }
            None => values.refuse(KEY, format!("{KEY}: \"{text}\" is not id@host:port")),
        }
    }
    let (Some(node_id), Some(controller)) = (node_id, controller) else { return voters };
    if !values.is_set(KEY) {
        if values.is_set(roles::BOOTSTRAP) {
            // Found by others, or waiting to be added: never the founder of a cluster of its own.
        } else if roles.controller {
            voters.insert(node_id, controller.advertised.clone());
        } else if roles.broker {
            values.refuse(KEY, roles::no_way_to_the_quorum());
        }
        return voters;
    }
    match voters.get(&node_id) {
        None if !roles.controller || values.is_set(roles::BOOTSTRAP) => {}
        None => values.refuse(KEY, roles::not_a_voter(node_id)),
        Some(_) if !roles.controller => values.refuse(KEY, roles::voter_without_role(node_id)),
        Some(me) if me.port != controller.port && controller.port != 0 => {
            let text = format!(
                "{KEY} says that node {node_id} is at port {}, but its listener {} is at {}: unless something forwards \
                 that port, the others will not reach it",
                me.port, controller.name, controller.port
            );
            values.warn(KEY, text);
        }
        Some(_) => {}
    }
    if voters.len() == 2 {
        values.warn(KEY, format!("{KEY} lists two voters: when either stops, metadata stands still; use one or three"));
    }
    voters
}

pub(super) fn check_reach(
    values: &mut Values,
    node_id: BrokerId,
    listeners: &Listeners,
    voters: &BTreeMap<BrokerId, Endpoint>,
) {
    let elsewhere = voters.iter().find(|(id, endpoint)| **id != node_id && !is_loopback(&endpoint.host));
    let Some((other, endpoint)) = elsewhere else { return };
    for listener in &listeners.kafka {
        if is_loopback(&listener.advertised.host) {
            let key = if values.is_set("advertised.listeners") { "advertised.listeners" } else { "listeners" };
            let text = format!(
                "advertised.listeners \"{}://{}:{}\" is loopback but broker {other} is at {}: clients on other hosts \
                 will fail",
                listener.name, listener.advertised.host, listener.advertised.port, endpoint.host
            );
            values.warn(key, text);
        }
    }
}

pub(super) fn http(values: &mut Values, listeners: Option<&Listeners>) -> Option<HttpConfig> {
    const KEY: &str = "http.listeners";
    let urls = values.list(KEY);
    if urls.len() > 1 {
        values.refuse(KEY, format!("{KEY} names {} addresses; one is served", urls.len()));
    }
    let text = urls.first().cloned().unwrap_or_default();
    let address = match text.strip_prefix("http://") {
        Some(address) => address.trim_end_matches('/'),
        None if text.starts_with("https://") => {
            values.refuse(KEY, format!("{KEY}: \"{text}\": https is not served yet; use http:// on loopback"));
            return None;
        }
        None => {
            values.refuse(KEY, format!("{KEY}: \"{text}\" is not http://host:port"));
            return None;
        }
    };
    let parsed = address.rsplit_once(':').and_then(|(host, port)| {
        Some((host.trim_start_matches('[').trim_end_matches(']').to_owned(), port.parse::<u16>().ok()?))
    });
    let Some((host, port)) = parsed else {
        values.refuse(KEY, format!("{KEY}: \"{text}\" is not http://host:port"));
        return None;
    };
    if !is_loopback(&host) {
        if values.is_set("http.auth.mode") {
            let text = format!("{KEY} \"{text}\" is reachable from other hosts without authentication");
            values.warn(KEY, text);
        } else {
            let text = format!(
                "{KEY} \"{text}\" is reachable from other hosts: set http.auth.mode explicitly (none: everybody may \
                 change the cluster) or listen on 127.0.0.1"
            );
            values.refuse(KEY, text);
        }
    }
    if let Some(listeners) = listeners {
        let all = listeners.kafka.iter().chain(std::iter::once(&listeners.controller));
        if let Some(other) = all.into_iter().find(|listener| listener.port == port && port != 0) {
            values.refuse(KEY, format!("{KEY} and listener {} share port {port}", other.name));
        }
    }
    let url = values
        .optional_text("http.advertised.url")
        .map(|url| url.trim_end_matches('/').to_owned())
        .unwrap_or_else(|| format!("http://{}", host_port(&dialable(&host), port)));
    let partition_metrics = match values.text("metrics.partition.level").as_str() {
        "summary" => PartitionMetrics::Summary,
        "full" => PartitionMetrics::Full,
        _ => PartitionMetrics::Leader,
    };
    let listen = Some((if host.is_empty() { "0.0.0.0".to_owned() } else { host }, port));
    Some(HttpConfig { listen, url, in_sync_wait_max: values.millis("ready.in.sync.max.wait.ms"), partition_metrics })
}

/// `host:port`, with brackets where the host is an IPv6 address.
pub fn host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
