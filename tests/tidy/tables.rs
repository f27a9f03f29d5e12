//! Tables that must agree: the limits of the configuration with the README and with the code that
//! reads and counts them, and the counters with the code that counts.

use crate::lexer::{braces, line_of, mask, places, product};
use crate::{catches, files, hold, read, sources};

/// Name and default of each row of `limits! { … }`, the default as a user writes it.
fn limits(text: &str) -> Vec<(String, String)> {
    let code = mask(text);
    let table =
        code.find("\nlimits! {").and_then(|at| braces(&code, at)).expect("there is a table");
    let rows = code[table.start + 1..table.end - 1].split(';');
    let row = |row: &str| {
        let (name, rest) = row.split_once(':')?;
        let default = rest.split_once('=')?.1.split_once(',')?.0.replace('_', "");
        let mut terms = default.split("<<").map(|term| term.trim().parse::<u64>());
        let (first, shift) = (terms.next()?.ok()?, terms.next().unwrap_or(Ok(0)).ok()?);
        let name = name.trim().to_owned();
        let default = written(first << shift, name.ends_with("_bytes"));
        Some((name, default))
    };
    rows.filter(|text| !text.trim().is_empty()).map(|text| row(text).expect(text)).collect()
}

/// A number as the configuration writes it: bytes with a binary unit where that is exact.
fn written(number: u64, is_bytes: bool) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let exact = |shift: &u32| number >= 1 << shift && number.is_multiple_of(1 << shift);
    match units.iter().find(|(shift, _)| is_bytes && exact(shift)) {
        Some((shift, unit)) => format!("{}{unit}", number >> shift),
        None => number.to_string(),
    }
}

/// The README's table of limits and the code's are the same.
fn documented(readme: &str, limits: &[(String, String)]) -> Vec<String> {
    let mut failures = Vec::new();
    let start = readme.find("\n## Limits").map_or(readme.len(), |at| at + 1);
    let section = &readme[start..];
    let section = &section[..section.find("\n## ").unwrap_or(section.len())];
    for (name, default) in limits {
        if !section.contains(&format!("\n| `{name}` | {default} | ")) {
            failures.push(format!("README.md:1: limits: no row `| `{name}` | {default} | …`"));
        }
    }
    for (at, row) in section.lines().enumerate().filter(|(_, line)| line.starts_with("| `")) {
        let name = row.split('`').nth(1).unwrap_or_default();
        if !limits.iter().any(|(limit, _)| limit == name) {
            let line = line_of(readme, start) + at;
            failures.push(format!("README.md:{line}: limits: there is no limit `{name}`"));
        }
    }
    failures
}

/// Code that counts a hit names a limit that exists.
fn hits(path: &str, text: &str, limits: &[(String, String)]) -> Vec<String> {
    let mut failures = Vec::new();
    for call in ["limits.hit(\"", "limit_hits.hit(\""] {
        for at in places(text, call) {
            let name = text[at + call.len()..].split('"').next().unwrap_or_default();
            if !limits.iter().any(|(limit, _)| limit == name) {
                failures.push(format!(
                    "{path}:{}: limits: there is no limit `{name}`",
                    line_of(text, at)
                ));
            }
        }
    }
    failures
}

/// Limits that no code outside the configuration reads.
fn unread(limits: &[(String, String)], sources: &[(String, String)]) -> Vec<String> {
    let code: Vec<String> = sources
        .iter()
        .filter(|(path, _)| !path.starts_with("src/config"))
        .map(|(_, text)| product(&mask(text)))
        .collect();
    let is_read = |name: &str| {
        code.iter().any(|code| places(code, &format!("limits.{name}")).next().is_some())
    };
    let unread = limits.iter().filter(|(name, _)| !is_read(name));
    unread
        .map(|(name, _)| format!("src/config/limits.rs:1: limits: nothing reads `{name}`"))
        .collect()
}

#[test]
fn every_limit_is_documented_and_read() {
    let sample = "\nlimits! {\n /// Doc; doc.\n a: usize = 1_024, 1 => 9;\n b_bytes: u64 = 3 << 20, 1 => 9;\n}";
    let rows = limits(sample);
    assert_eq!(rows, [("a".into(), "1024".into()), ("b_bytes".into(), "3MiB".into())]);
    catches(
        &documented("# X\n## Limits\n| `a` | 1000 | x |\n| `c` | 1 | x |\n", &rows),
        &["`a` | 1024", "`b_bytes` | 3MiB", "README.md:4: limits: there is no limit `c`"],
    );
    catches(
        &hits("a.rs", "\nlimit_hits.hit(\"a\"); limits.hit(\"d\")", &rows),
        &["a.rs:2: limits: there is no"],
    );
    catches(
        &unread(&rows, &[("src/a.rs".into(), "limits.a; limits.b_bytes_max; x.b_bytes".into())]),
        &["reads `b_bytes`"],
    );
    let rows = limits(&read("src/config/limits.rs"));
    let sources = sources(&["src/"]);
    hold(&files(&["README.md"]), |_, text| documented(text, &rows));
    hold(&sources, |path, text| hits(path, text, &rows));
    hold(&[(String::new(), String::new())], |_, _| unread(&rows, &sources));
}

/// The names in the table of counters.
fn counters(text: &str) -> Vec<String> {
    let code = mask(text);
    let table =
        code.find(" Counters {").and_then(|at| braces(&code, at)).expect("there is a table");
    code[table]
        .split(['{', '}', ';'])
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

/// Counters that nothing outside `metrics.rs` raises or sets.
fn uncounted(counters: &[String], sources: &[(String, String)]) -> Vec<String> {
    let code: Vec<String> = sources
        .iter()
        .filter(|(path, _)| path != "src/metrics.rs")
        .map(|(_, text)| product(&mask(text)))
        .collect();
    let is_set = |code: &str, name: &str| {
        let field = format!(".{name}");
        places(code, &field).any(|at| {
            let rest = code[at + field.len()..].trim_start();
            rest.starts_with("+=") || rest.starts_with('=') && !rest.starts_with("==")
        })
    };
    let unset = counters.iter().filter(|name| !code.iter().any(|code| is_set(code, name)));
    unset.map(|name| format!("src/metrics.rs:1: counters: nothing counts `{name}`")).collect()
}

#[test]
fn every_counter_is_counted() {
    let names = counters("numbers! {\n /// Doc\n Counters {\n /// Doc; doc\n a;\n b;\n }\n}");
    assert_eq!(names, ["a", "b"]);
    let code = "x.counters.a += 1; if y.b == 2 {} // x.b += 1";
    catches(&uncounted(&names, &[("src/x.rs".into(), code.into())]), &["nothing counts `b`"]);
    let names = counters(&read("src/metrics.rs"));
    hold(&[(String::new(), String::new())], |_, _| uncounted(&names, &sources(&["src/"])));
}
