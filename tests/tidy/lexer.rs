//! Just enough of Rust's syntax: what is code, where words stand, and which brace closes which.
//! Places are byte offsets into the masked text, whose lines are those of the file.

use std::ops::Range;

use crate::{catches, hold, sources};

pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The text with each character of a comment replaced by a blank and each of a literal by `~`;
/// line ends stay, so lines and columns do too.
pub(crate) fn mask(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut masked = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let (end, fill) = token(&chars, at);
        let end = end.min(chars.len());
        masked.extend(chars[at..end].iter().map(|&c| match fill {
            Some(fill) if c != '\n' => fill,
            _ => c,
        }));
        at = end;
    }
    masked
}

/// Where the token at `at` ends, and what replaces it.
fn token(chars: &[char], at: usize) -> (usize, Option<char>) {
    let peek = |n: usize| chars.get(at + n).copied().unwrap_or('\0');
    let until = |from: usize, end: &str| {
        let end: Vec<char> = end.chars().collect();
        let found = chars.get(from..).and_then(|c| c.windows(end.len()).position(|w| w == end));
        found.map_or(chars.len(), |found| from + found)
    };
    match (peek(0), peek(1)) {
        ('/', '/') => (until(at, "\n"), Some(' ')),
        ('/', '*') => (block_comment_end(chars, at), Some(' ')),
        ('"', _) => (quoted_end(chars, at, '"'), Some('~')),
        ('\'', '\\') => (quoted_end(chars, at, '\''), Some('~')),
        ('\'', _) if peek(2) == '\'' => (at + 3, Some('~')),
        (c, _) if is_word(c) => {
            let end = (at..chars.len()).find(|&i| !is_word(chars[i])).unwrap_or(chars.len());
            let word: String = chars[at..end].iter().collect();
            let hashes = chars[end..].iter().take_while(|&&c| c == '#').count();
            let quote = chars.get(end + hashes).copied().unwrap_or('\0');
            match word.as_str() {
                "r" | "br" | "cr" if quote == '"' => {
                    let close = format!("\"{}", "#".repeat(hashes));
                    (until(end + hashes + 1, &close) + close.len(), Some('~'))
                }
                "b" | "c" if quote == '"' && hashes == 0 => {
                    (quoted_end(chars, end, '"'), Some('~'))
                }
                "b" if quote == '\'' => (quoted_end(chars, end, '\''), Some('~')),
                _ => (end, None),
            }
        }
        _ => (at + 1, None),
    }
}

fn quoted_end(chars: &[char], open: usize, quote: char) -> usize {
    let mut at = open + 1;
    while at < chars.len() && chars[at] != quote {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

fn block_comment_end(chars: &[char], open: usize) -> usize {
    let mut depth = 0;
    let mut at = open;
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

/// Every identifier and number of masked code with its place.
pub(crate) fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let parts = code.split(|c| !is_word(c)).filter(|part| !part.is_empty());
    parts.map(|part| (part.as_ptr() as usize - code.as_ptr() as usize, part))
}

/// The word that follows; empty when something else does.
pub(crate) fn next_word(rest: &str) -> &str {
    let rest = rest.trim_start();
    &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())]
}

/// Where `word` stands in `text` and is not part of a longer identifier.
pub(crate) fn places<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = text[..at].chars().next_back().is_some_and(is_word);
        let after = text[at + word.len()..].chars().next().is_some_and(is_word);
        !(before && word.starts_with(is_word) || after && word.ends_with(is_word))
    })
}

pub(crate) fn line_of(text: &str, at: usize) -> usize {
    1 + text[..at].matches('\n').count()
}

/// From the brace that opens at or after `from` to the one that closes it; `None` when a
/// semicolon outside brackets comes first.
pub(crate) fn braces(code: &str, from: usize) -> Option<Range<usize>> {
    let mut brackets = 0;
    let mut open = None;
    let mut depth = 0;
    for (at, c) in code[from..].char_indices().map(|(at, c)| (from + at, c)) {
        match c {
            '(' | '[' if open.is_none() => brackets += 1,
            ')' | ']' if open.is_none() => brackets -= 1,
            ';' if open.is_none() && brackets == 0 => return None,
            '{' if open.is_some() || brackets == 0 => {
                open = open.or(Some(at));
                depth += 1;
            }
            '}' if open.is_some() => {
                depth -= 1;
                if depth == 0 {
                    return open.map(|open| open..at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// The inline `mod tests`, attribute included.
pub(crate) fn inline_tests(code: &str) -> Option<Range<usize>> {
    let attribute = "#[cfg(test)]";
    code.match_indices(attribute).find_map(|(at, _)| {
        let rest = code[at + attribute.len()..].trim_start();
        let body = rest.starts_with("mod ").then(|| braces(code, code.len() - rest.len()))?;
        Some(at..body?.end)
    })
}

/// The code without its inline tests, with every line in its place.
pub(crate) fn product(code: &str) -> String {
    let Some(tests) = inline_tests(code) else { return code.to_owned() };
    let blank = code[tests.clone()].chars().map(|c| if c == '\n' { c } else { ' ' });
    let blank: String = blank.collect();
    format!("{}{blank}{}", &code[..tests.start], &code[tests.end..])
}

pub(crate) fn code_lines(code: &str) -> usize {
    code.lines().filter(|line| !line.trim().is_empty()).count()
}

/// Braces that do not close each other betray a literal or comment taken for code, or the reverse.
fn unbalanced(path: &str, text: &str) -> Vec<String> {
    let code = mask(text);
    let (open, close) = (code.matches('{').count(), code.matches('}').count());
    let is_balanced = open == close && text.lines().count() == code.lines().count();
    if is_balanced {
        Vec::new()
    } else {
        vec![format!("{path}:1: lexer: {open} `{{`, {close} `}}`")]
    }
}

#[test]
fn comments_and_literals_are_no_code() {
    assert_eq!(mask("a // {\n/* { /* */ } */ b"), "a     \n                b");
    assert_eq!(mask(r##"f("\"{", b'{', '\'', r#"{"#) "##), "f(~~~~~, ~~~~, ~~~~, ~~~~~~) ");
    assert_eq!(
        mask("fn f<'a>(x: &'a str) -> 'b' { r#type }"),
        "fn f<'a>(x: &'a str) -> ~~~ { r#type }"
    );
    catches(&unbalanced("a.rs", "{"), &["a.rs:1: lexer: 1"]);
    hold(&sources(&["src/", "tests/", "benches/"]), unbalanced);
}
