//! The house rules that a machine can check: who imports whom, sizes, docs, unsafe, banned words,
//! and that README and metrics keep up with the code.
//!
//! A rule is a function from a file to its failures, each `path:line: rule: why`. Every test first
//! shows that its rule catches a bad sample, then holds the whole tree to it. Rules about code look
//! at masked text ([`lexer::mask`]), so comments and literals never trip them.

mod fences;
mod imports;
mod lexer;
mod sizes;
mod tables;
mod words;

use std::fs;
use std::path::Path;

/// Every file of the tree whose path begins with one of `places`, as (path, text), sorted.
fn files(places: &[&str]) -> Vec<(String, String)> {
    fn walk(root: &Path, dir: &Path, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(dir).expect("the directory reads") {
            let path = entry.expect("the entry reads").path();
            let name = path.file_name().expect("an entry has a name").to_string_lossy();
            if [".git", ".clients", "target"].contains(&&*name) || path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                walk(root, &path, found);
            } else {
                let text = fs::read(&path).expect("the file reads");
                let path = path.strip_prefix(root).expect("it is below the root");
                let path = path.to_str().expect("paths are UTF-8").to_owned();
                found.push((path, String::from_utf8_lossy(&text).into_owned()));
            }
        }
    }
    let root = Path::new(option_env!("CARGO_MANIFEST_DIR").unwrap_or("."));
    let mut found = Vec::new();
    walk(root, root, &mut found);
    found.retain(|(path, _)| places.iter().any(|place| path.starts_with(place)));
    found.sort();
    assert!(!found.is_empty(), "no file below {places:?}");
    found
}

fn sources(places: &[&str]) -> Vec<(String, String)> {
    let mut found = files(places);
    found.retain(|(path, _)| path.ends_with(".rs"));
    found
}

fn read(path: &str) -> String {
    files(&[path]).swap_remove(0).1
}

/// Holds `files` to a rule and shows every failure at once.
fn hold(files: &[(String, String)], rule: impl Fn(&str, &str) -> Vec<String>) {
    let failures: Vec<_> = files.iter().flat_map(|(path, text)| rule(path, text)).collect();
    assert!(failures.is_empty(), "{} failure(s):\n{}\n", failures.len(), failures.join("\n"));
}

/// Shows that a rule finds exactly what `expected` names in a bad sample.
#[track_caller]
fn catches(failures: &[String], expected: &[&str]) {
    let all = failures.iter().zip(expected).all(|(failure, part)| failure.contains(part));
    assert!(all && failures.len() == expected.len(), "expected {expected:?}, got {failures:#?}");
}
