//! `ops/server.properties.example`, written from the table of keys: every key with its default, unit and reason.

use super::keys::{GROUPS, Kind};

/// The text of `ops/server.properties.example`.
pub fn text() -> String {
    let mut out = String::from(
        "# Highwater: every key with its default, unit and reason. A line without '#' must be set.\n\
         # Environment: KAFKA_ and the key with '.' as '_', '_' as '__', '-' as '___'; flags: -X key=value.\n\
         # Stronger first: flags, environment, this file, default. ${env:NAME} and ${file:/path} are expanded.\n\
         # `highwater check --config FILE` tells all that is wrong with a file without starting anything.\n",
    );
    for group in GROUPS {
        out.push_str(&format!("\n### {} ###\n", group.title));
        for key in group.keys {
            out.push('\n');
            for line in key.about.lines() {
                out.push_str(&format!("# {line}\n"));
            }
            if let Kind::OneOf(allowed) = key.kind {
                out.push_str(&format!("# One of: {}\n", allowed.join(", ")));
            }
            if key.name == "node.id" {
                out.push_str("node.id=1\n");
            } else {
                out.push_str(&format!("#{}={}\n", key.name, key.default));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_file_lists_every_key_with_its_default() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../server.properties.example");
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        if stored != text() {
            std::fs::write(path, text()).unwrap();
            panic!("ops/server.properties.example was out of step and has been written anew: commit it");
        }
    }
}
