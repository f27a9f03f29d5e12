//! Who may import whom: the levels of the crate doc as a table, and the reading of paths that begin
//! with `crate` or climb with `super`.

use crate::lexer::{braces, is_word, line_of, mask, words};
use crate::{catches, hold, sources};

/// Level 0, in its own order: each may import those before it, and all others may import all four.
const WORDS: [&str; 4] = ["name", "steer", "config", "metrics"];

/// What each module above level 0 may import besides level 0.
const LEVELS: [(&str, &[&str]); 7] = [
    ("wire", &[]),
    ("model", &[]),
    ("net", &[]),
    ("quic", &[]),
    ("session", &["wire", "model"]),
    ("fanout", &["model"]),
    ("shard", &["wire", "model", "net", "quic", "session", "fanout"]),
];

/// All that control may import.
const CONTROL: [&str; 4] = ["name", "config", "metrics", "fanout"];

/// The names of modules that a file stands in; none for `main.rs` and `lib.rs`.
fn module_path(path: &str) -> Vec<&str> {
    let path = path.trim_start_matches("src/").trim_end_matches(".rs");
    let mut names: Vec<&str> = path.split('/').collect();
    if matches!(names.last(), Some(&("mod" | "main" | "lib"))) {
        names.pop();
    }
    names
}

fn may_import(from: &str, to: &str) -> bool {
    let rank = |module| WORDS.iter().position(|word| *word == module);
    match (from, rank(from), rank(to)) {
        ("main" | "lib", ..) => true,
        ("control", ..) => CONTROL.contains(&to),
        (_, Some(from), to) => to.is_some_and(|to| to < from),
        (_, None, Some(_)) => true,
        (_, None, None) => {
            LEVELS.iter().any(|(module, below)| *module == from && below.contains(&to))
        }
    }
}

/// The first names of a path that goes on at `rest`, which begins after `crate` or `super`.
fn heads(rest: &str) -> Vec<&str> {
    fn first(text: &str) -> &str {
        let text = text.trim_start();
        let end = text.find(|c| !is_word(c)).unwrap_or(text.len());
        &text[..end.max(text.chars().next().map_or(0, char::len_utf8))]
    }
    let Some(rest) = rest.trim_start().strip_prefix("::") else { return Vec::new() };
    let Some(group) = rest.trim_start().strip_prefix('{') else { return vec![first(rest)] };
    let mut found = vec![first(group)];
    let mut depth = 0;
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => found.push(first(&group[at + 1..])),
            _ => {}
        }
    }
    found.retain(|head| *head != "}");
    found
}

/// What a `super` chain at `at` names at the crate's root, if it leads there.
fn super_heads<'a>(code: &'a str, at: usize, depth: usize) -> Vec<&'a str> {
    let mut supers = 1;
    let mut rest = &code[at + "super".len()..];
    let next =
        |rest: &'a str| rest.trim_start().strip_prefix("::")?.trim_start().strip_prefix("super");
    while let Some(further) = next(rest).filter(|further| !further.starts_with(is_word)) {
        (supers, rest) = (supers + 1, further);
    }
    if supers == depth { heads(rest) } else { Vec::new() }
}

/// Imports go down the levels of the crate doc, never up or sideways.
fn imports(path: &str, text: &str) -> Vec<String> {
    let code = mask(text);
    let file = module_path(path);
    let from = match file.first() {
        Some(module) => *module,
        None => path.trim_start_matches("src/").trim_end_matches(".rs"),
    };
    let known = from == "main" || from == "lib" || from == "control";
    if !known && !WORDS.contains(&from) && !LEVELS.iter().any(|(module, _)| *module == from) {
        return vec![format!(
            "{path}:1: imports: `{from}` has no level: give it one in tests/tidy/imports.rs"
        )];
    }
    let inline: Vec<_> = words(&code)
        .filter(|(_, word)| *word == "mod")
        .filter_map(|(at, _)| braces(&code, at))
        .collect();
    let mut failures = Vec::new();
    for (at, word) in words(&code) {
        let depth = file.len() + inline.iter().filter(|span| span.contains(&at)).count();
        let is_chained = code[..at].trim_end().ends_with("::");
        let heads = match word {
            "crate" | "corelay" => heads(&code[at + word.len()..]),
            "super" if !is_chained => super_heads(&code, at, depth),
            _ => continue,
        };
        let line = line_of(&code, at);
        for to in heads.into_iter().filter(|to| *to != from && !may_import(from, to)) {
            failures.push(format!("{path}:{line}: imports: {from} may not import `{to}`"));
        }
    }
    failures
}

#[test]
fn imports_go_down_the_levels() {
    let check = |path, text| imports(path, text);
    catches(
        &check("src/wire/lite/mod.rs", "use crate::{name::Path, model::{self, Key}};"),
        &["src/wire/lite/mod.rs:1: imports: wire may not import `model`"],
    );
    catches(
        &check("src/session/mod.rs", "\nfn f(a: crate::net::Send) {}"),
        &[":2: imports: session"],
    );
    catches(
        &check("src/steer.rs", "use crate::config::Config;"),
        &["steer may not import `config`"],
    );
    catches(&check("src/metrics.rs", "use super::wire;"), &["metrics may not import `wire`"]);
    catches(
        &check("src/quic/tls.rs", "use super::super::net::{Rx};"),
        &["quic may not import `net`"],
    );
    catches(
        &check("src/net/mod.rs", "mod tests { use super::super::quic; use super::sys; }"),
        &["`quic`"],
    );
    catches(&check("src/control/http.rs", "use crate::steer::Layout;"), &["control may not"]);
    catches(&check("src/fanout/mesh.rs", "use crate::*;"), &["fanout may not import `*`"]);
    catches(&check("src/extra.rs", ""), &["`extra` has no level"]);
    catches(
        &check("src/session/lite.rs", "use crate::{wire::lite, model, config}; use super::Io;"),
        &[],
    );
    catches(
        &check("src/wire/mod.rs", "//! See [`crate::session`].\npub(crate) use self::code::Code;"),
        &[],
    );
    hold(&sources(&["src/"]), imports);
}
