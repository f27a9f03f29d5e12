//! Where unsafe code may stand, and that each use of it argues why it is sound. The compiler denies
//! it by default; this keeps the list of files that lift the ban.

use crate::lexer::{line_of, mask, words};
use crate::{catches, hold, sources};

/// The only files with unsafe code.
const UNSAFE: [&str; 6] = [
    "src/net/ring.rs",
    "src/net/sys.rs",
    "src/net/cmsg.rs",
    "src/model/arena.rs",
    "src/shard/thread.rs",
    "tests/allocs.rs",
];

/// Unsafe code is fenced, and says why each of its conditions holds.
fn fenced(path: &str, text: &str) -> Vec<String> {
    let code = mask(text);
    let lines: Vec<(&str, &str)> = text.lines().zip(code.lines()).collect();
    let mut failures = Vec::new();
    for (at, word) in words(&code).filter(|(_, word)| ["unsafe", "unsafe_code"].contains(word)) {
        let line = line_of(&code, at);
        if !UNSAFE.contains(&path) {
            failures.push(format!(
                "{path}:{line}: unsafe: not in this file; see the list in tests/tidy/fences.rs"
            ));
        } else if word == "unsafe" && !is_argued(&lines, line - 1) {
            failures.push(format!("{path}:{line}: unsafe: no SAFETY comment before it"));
        }
    }
    failures
}

/// True when the statement that line `at` belongs to has a SAFETY comment above it.
fn is_argued(lines: &[(&str, &str)], at: usize) -> bool {
    let mut above = lines[..at].iter().rev().skip_while(|(text, code)| {
        let code = code.trim_end();
        !text.trim().starts_with("//") && !code.is_empty() && !code.ends_with([';', '{', '}'])
    });
    above
        .by_ref()
        .take_while(|(text, code)| code.trim().is_empty() && text.trim().starts_with("//"))
        .any(|(text, _)| text.contains("SAFETY:") || text.contains("# Safety"))
}

#[test]
fn unsafe_code_is_fenced_and_argued() {
    catches(
        &fenced("src/name.rs", "// SAFETY: no.\nunsafe { f() }"),
        &["src/name.rs:2: unsafe: not in"],
    );
    catches(
        &fenced("src/quic/mod.rs", "#![expect(unsafe_code, reason = \"no\")]"),
        &[":1: unsafe: not in"],
    );
    let check = |text| fenced("src/net/sys.rs", text);
    catches(&check("// fine\nlet a = unsafe { f() };"), &[":2: unsafe: no SAFETY"]);
    catches(&check("// SAFETY: a.\nf();\nunsafe { f() }"), &[":3: unsafe: no SAFETY"]);
    catches(
        &check("// SAFETY: a\n// b.\nlet a =\n    unsafe { f() };\n// unsafe\n\"unsafe\";"),
        &[],
    );
    hold(&sources(&["src/", "tests/", "benches/"]), fenced);
}
