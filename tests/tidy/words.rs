//! Words that promise work for later, hide what a module holds, reach for the wrong tool, or name
//! one machine's directories.

use crate::lexer::{is_word, line_of, mask, next_word, places, product};
use crate::{catches, files, hold, sources};

/// A word that code may not have, what to do instead, and under which paths it may stay.
type Ban = (&'static str, &'static str, &'static [&'static str]);

/// Where the clock is read and the world is touched.
const IMPURE: &[&str] = &["src/shard/thread.rs", "src/control/", "src/main.rs"];

/// In the code of `src/`, inline tests excepted.
const PRODUCT_BANS: [Ban; 13] = [
    (".unwrap()", "state the invariant with expect", &[]),
    ("HashMap", "use rustc_hash::FxHashMap", &[]),
    ("HashSet", "use rustc_hash::FxHashSet", &[]),
    ("Mutex", "send a message", &["src/control/"]),
    ("RwLock", "send a message", &["src/control/"]),
    ("async", "return what to do next", IMPURE),
    ("Instant::now", "take `now` as an argument", IMPURE),
    ("SystemTime::now", "take `now` as an argument", IMPURE),
    ("thread::spawn", "threads start in shard and main", &["src/shard/thread.rs", "src/main.rs"]),
    ("monoio", "the runtime is shard/thread.rs's", &["src/net/", "src/shard/thread.rs"]),
    ("tokio", "the runtime is control's", &["src/control/", "src/main.rs"]),
    ("quinn_proto", "ask quic", &["src/quic/", "src/shard/"]),
    ("anyhow", "declare an error per operation", &["src/main.rs"]),
];

/// In all code.
const CODE_BANS: [Ban; 5] = [
    ("todo!", "finish it", &[]),
    ("unimplemented!", "finish it", &[]),
    ("dbg!", "use tracing", &[]),
    ("#[ignore", "mend the test or delete it", &[]),
    ("thread::sleep", "wait for the event itself", &[]),
];

/// In all text, comments included; written in halves so that this file may be looked at too.
const TEXT_BANS: [Ban; 3] = [
    (concat!("TO", "DO"), "open an issue", &[]),
    (concat!("FIX", "ME"), "open an issue", &[]),
    (concat!("X", "XX"), "open an issue", &[]),
];

const MODULE_BANS: [&str; 7] = ["util", "utils", "helper", "helpers", "common", "misc", "prelude"];

/// Directories of absolute paths that exist on one machine only.
const LOCAL_ROOTS: [&str; 3] =
    [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

fn banned(path: &str, text: &str, bans: &[Ban]) -> Vec<String> {
    let mut failures = Vec::new();
    for (word, instead, except) in bans {
        if except.iter().any(|place| path.starts_with(place)) {
            continue;
        }
        for at in places(text, word) {
            failures.push(format!("{path}:{}: words: `{word}`: {instead}", line_of(text, at)));
        }
    }
    failures
}

/// What product code does not do.
fn product_words(path: &str, text: &str) -> Vec<String> {
    banned(path, &product(&mask(text)), &PRODUCT_BANS)
}

/// What no code does, and names that say nothing.
fn code_words(path: &str, text: &str) -> Vec<String> {
    let code = mask(text);
    let mut failures = banned(path, &code, &CODE_BANS);
    let file = path.trim_end_matches(".rs").split('/').map(|name| (0, name));
    let inline = places(&code, "mod").map(|at| (at, next_word(&code[at + "mod".len()..])));
    for (at, name) in file.chain(inline).filter(|(_, name)| MODULE_BANS.contains(name)) {
        let line = line_of(&code, at);
        failures
            .push(format!("{path}:{line}: words: module `{name}`: name it after what it holds"));
    }
    failures
}

/// What no file says, not even in a comment.
fn text_words(path: &str, text: &str) -> Vec<String> {
    banned(path, text, &TEXT_BANS)
}

#[test]
fn words_that_promise_later_or_hide_are_absent() {
    let check = product_words;
    catches(
        &check("src/a.rs", "a.unwrap();\n#[cfg(test)]\nmod tests { fn f() { b.unwrap() } }"),
        &["a.rs:1"],
    );
    catches(
        &check("src/a.rs", "use std::collections::HashMap; type A = FxHashMap;"),
        &["`HashMap`"],
    );
    catches(
        &check("src/a.rs", "async fn f(a: Mutex<u8>, b: RwLock<u8>) {}"),
        &["`Mutex`", "`RwLock`", "`async`"],
    );
    catches(&check("src/control/a.rs", "async fn f(a: Mutex<u8>) {} // HashMap"), &[]);
    catches(
        &check("src/session/a.rs", "let a = Instant::now(); quinn_proto::x()"),
        &["take `now`", "ask quic"],
    );
    let check = code_words;
    catches(
        &check("tests/a.rs", "#[ignore = \"x\"]\nfn f() { todo!() }"),
        &[":2: words: `todo!`", ":1: words"],
    );
    catches(
        &check(
            "src/util.rs",
            "mod helpers { fn f() { thread::sleep(a); dbg!(b); unimplemented!() } }",
        ),
        &["unimplemented!", "dbg!", "thread::sleep", "`util`", "`helpers`"],
    );
    let text = format!("a\n# {}: later, XXXX\n", TEXT_BANS[0].0);
    catches(&text_words(".ci/run", &text), &[".ci/run:2: words"]);
    hold(&sources(&["src/"]), product_words);
    hold(&sources(&["src/", "tests/", "benches/"]), code_words);
    let kept =
        ["src/", "tests/", "benches/", "README.md", ".ci/", ".github/", "tuning/", ".cargo/"];
    hold(&files(&kept), text_words);
}

/// No file knows where on one machine it was written.
fn local_paths(path: &str, text: &str) -> Vec<String> {
    let mut failures = Vec::new();
    for root in LOCAL_ROOTS {
        for (at, _) in text.match_indices(root) {
            let before = text[..at].chars().next_back();
            if !before.is_some_and(|c| is_word(c) || ".-~})".contains(c)) {
                failures.push(format!(
                    "{path}:{}: paths: `{root}` is one machine's",
                    line_of(text, at)
                ));
            }
        }
    }
    failures
}

#[test]
fn no_path_of_one_machine_is_named() {
    let [first, second, _] = LOCAL_ROOTS;
    catches(&local_paths("a", &format!("x\ncd {first}x\n")), &["a:2: paths"]);
    catches(&local_paths("a", &format!("moqt://127.0.0.1:4443{second}x")), &[]);
    hold(&files(&[""]), local_paths);
}
