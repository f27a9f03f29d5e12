//! How large a file, a function and a line may be, and that every file says what it is. Only code
//! counts: blank lines and comments are free.

use crate::lexer::{braces, code_lines, inline_tests, line_of, mask, next_word, product, words};
use crate::{catches, hold, sources};

const FILE_LINES_MAX: usize = 600;
const INLINE_TEST_LINES_MAX: usize = 80;
const FUNCTION_LINES_MAX: usize = 70;
const LINE_CHARS_MAX: usize = 100;
/// A literal this long cannot be broken by the formatter, so its line may be longer.
const LITERAL_CHARS_LONG: usize = 60;
const MODULE_DOC_LINES_MIN: usize = 2;

/// Files, functions and lines stay small enough to read.
fn sizes(path: &str, text: &str) -> Vec<String> {
    let code = mask(text);
    let mut failures = Vec::new();
    let lines = code_lines(&product(&code));
    if lines > FILE_LINES_MAX {
        failures.push(format!("{path}:1: sizes: {lines} code lines, {FILE_LINES_MAX} at most"));
    }
    if let Some(tests) = inline_tests(&code) {
        let lines = code_lines(&code[tests.clone()]);
        let line = line_of(&code, tests.start);
        if lines > INLINE_TEST_LINES_MAX {
            let most = INLINE_TEST_LINES_MAX;
            failures.push(format!(
                "{path}:{line}: sizes: {lines} lines of inline tests, {most} at most"
            ));
        }
    }
    for (at, _) in words(&code).filter(|(_, word)| *word == "fn") {
        let name = next_word(&code[at + "fn".len()..]);
        let Some(body) = braces(&code, at).filter(|_| !name.is_empty()) else { continue };
        let (lines, line) = (code_lines(&code[at..body.end]), line_of(&code, at));
        if lines > FUNCTION_LINES_MAX {
            let most = FUNCTION_LINES_MAX;
            failures.push(format!(
                "{path}:{line}: sizes: `{name}` has {lines} code lines, {most} at most"
            ));
        }
    }
    for (at, (line, masked)) in text.lines().zip(code.lines()).enumerate() {
        let literal = masked.split(|c| c != '~').map(str::len).max().unwrap_or(0);
        let chars = line.chars().count();
        if chars > LINE_CHARS_MAX && literal <= LITERAL_CHARS_LONG {
            failures.push(format!(
                "{path}:{}: sizes: {chars} characters, {LINE_CHARS_MAX} at most",
                at + 1
            ));
        }
    }
    failures
}

#[test]
fn files_functions_and_lines_are_small() {
    let check = |text: &str| sizes("a.rs", text);
    let lines = |n: usize| "x();\n".repeat(n);
    catches(&check(&lines(601)), &["a.rs:1: sizes: 601 code lines"]);
    catches(&check(&format!("{}{}", lines(600), "// comment\n\n".repeat(9))), &[]);
    catches(
        &check(&format!("#[cfg(test)]\nmod tests {{\n{}}}", lines(78))),
        &["81 lines of inline tests"],
    );
    catches(
        &check(&format!("\nfn f(a: [u8; 2]) {{\n{}}}\nfn g() {{}}", lines(69))),
        &[":2: sizes: `f` has 71"],
    );
    catches(&check(&format!("fn f() {{\n// fn g() {{\n\n{}}}", lines(68))), &[]);
    catches(&check(&"é".repeat(101)), &["a.rs:1: sizes: 101 characters"]);
    catches(&check(&format!("f(\"{}\");", "a".repeat(99))), &[]);
    hold(&sources(&["src/"]), sizes);
}

/// Every file says what it is.
fn module_docs(path: &str, text: &str) -> Vec<String> {
    let docs = text.lines().map_while(|line| line.strip_prefix("//!"));
    let lines = docs.filter(|doc| !doc.trim().is_empty()).count();
    if lines >= MODULE_DOC_LINES_MIN {
        return Vec::new();
    }
    let least = MODULE_DOC_LINES_MIN;
    vec![format!("{path}:1: docs: begins with {lines} line(s) of `//!`, {least} at least")]
}

#[test]
fn every_file_says_what_it_is() {
    catches(
        &module_docs("a.rs", "//! One.\n//!\nuse x;\n//! Two."),
        &["a.rs:1: docs: begins with 1 line"],
    );
    catches(&module_docs("a.rs", "//! One,\n//! two."), &[]);
    hold(&sources(&["src/"]), module_docs);
}
