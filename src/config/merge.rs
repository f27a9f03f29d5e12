//! One value per setting out of four sources. Everything is still text here; what a text means is
//! asked afterwards, the same way whatever its source.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::Read;
use super::error::ConfigError;
use super::settings::{self, Given, Setting, Shape};

const OURS: &str = "CORELAY_";
const ALIAS: &str = "MOQ_";

/// Likeness from which a known name is suggested for an unknown one.
const NEAR: f64 = 0.6;

/// Where a value is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// This flag.
    Flag(String),
    /// This environment variable.
    Env(String),
    /// This key in this file.
    File(String, String),
    /// The default of this flag.
    Default(String),
    /// `RUST_LOG`, which stands above all.
    RustLog,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "--{flag}"),
            Self::Env(name) => write!(f, "environment variable {name}"),
            Self::File(key, file) => write!(f, "key `{key}` in {file}"),
            Self::Default(flag) => write!(f, "the default of --{flag}"),
            Self::RustLog => f.write_str("environment variable RUST_LOG"),
        }
    }
}

#[derive(Debug)]
struct Value {
    source: Source,
    items: Vec<String>,
}

/// The value of each setting that has one, by flag.
#[derive(Debug)]
pub(super) struct Merged(BTreeMap<String, Value>);

impl Merged {
    /// Merges the sources; refuses unknown names in the environment and in the file.
    pub(super) fn new(
        settings: &[Setting],
        line: &Given,
        env: &BTreeMap<String, String>,
        read: Read<'_>,
    ) -> Result<Self, ConfigError> {
        refuse_unknown_env(settings, env)?;
        let named = env.get(&format!("{OURS}{}", settings::env_name(settings::FILE_FLAG)));
        let file = match line.file.clone().or_else(|| named.map(PathBuf::from)) {
            Some(file) => read_file(settings, &file, read)?,
            None => BTreeMap::new(),
        };
        let mut merged = Self::defaults(settings);
        for setting in settings {
            let value = from_line(setting, line)
                .or_else(|| from_env(setting, OURS, env))
                .or_else(|| from_env(setting, ALIAS, env));
            if let Some(value) = value {
                merged.0.insert(setting.flag.clone(), value);
            } else if let Some((source, items)) = file.get(&setting.key) {
                let value = Value { source: source.clone(), items: items.clone() };
                merged.0.insert(setting.flag.clone(), value);
            }
        }
        Ok(merged)
    }

    /// Nothing but defaults.
    pub(super) fn defaults(settings: &[Setting]) -> Self {
        let given = settings.iter().filter(|setting| !setting.default.is_empty());
        let value = |setting: &Setting| Value {
            source: Source::Default(setting.flag.clone()),
            items: split(setting, &setting.default),
        };
        Self(given.map(|setting| (setting.flag.clone(), value(setting))).collect())
    }

    /// Where the value of `flag` is from; `None` when it is the default or there is none.
    pub(super) fn source(&self, flag: &str) -> Option<&Source> {
        let source = &self.0.get(flag)?.source;
        Some(source).filter(|source| !matches!(source, Source::Default(_)))
    }

    /// True when nobody set `flag`.
    pub(super) fn is_default(&self, flag: &str) -> bool {
        self.source(flag).is_none()
    }

    /// Every item of `flag`; none when it has neither value nor default.
    pub(super) fn list<T>(
        &self,
        flag: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Vec<T>, ConfigError> {
        let Some(Value { source, items }) = self.0.get(flag) else { return Ok(Vec::new()) };
        let invalid = |why| ConfigError::Invalid { source: source.to_string(), why };
        if items.is_empty() {
            return Err(invalid("is an empty list: name something, or leave it out".to_owned()));
        }
        items.iter().map(|item| parse(item.trim()).map_err(invalid)).collect()
    }

    /// The one item of `flag`, if it has a value or a default.
    pub(super) fn maybe<T>(
        &self,
        flag: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, ConfigError> {
        let mut items = self.list(flag, parse)?;
        match (items.pop(), items.is_empty(), self.0.get(flag)) {
            (Some(_), false, Some(value)) => Err(ConfigError::Invalid {
                source: value.source.to_string(),
                why: "takes one value, not a list: name one".to_owned(),
            }),
            (item, ..) => Ok(item),
        }
    }

    /// The one item of `flag`, which has a default.
    pub(super) fn one<T>(
        &self,
        flag: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, ConfigError> {
        Ok(self.maybe(flag, parse)?.expect("the setting has a default"))
    }
}

fn split(setting: &Setting, text: &str) -> Vec<String> {
    match setting.shape {
        Shape::List => text.split(',').map(str::to_owned).collect(),
        Shape::One | Shape::Switch => vec![text.to_owned()],
    }
}

fn from_line(setting: &Setting, line: &Given) -> Option<Value> {
    let items = line.values(setting)?;
    Some(Value { source: Source::Flag(setting.flag.clone()), items })
}

fn from_env(setting: &Setting, prefix: &str, env: &BTreeMap<String, String>) -> Option<Value> {
    let name = format!("{prefix}{}", setting.env());
    let items = split(setting, env.get(&name)?);
    Some(Value { source: Source::Env(name), items })
}

fn refuse_unknown_env(
    settings: &[Setting],
    env: &BTreeMap<String, String>,
) -> Result<(), ConfigError> {
    let mut known: Vec<String> = settings.iter().map(|s| format!("{OURS}{}", s.env())).collect();
    known.push(format!("{OURS}{}", settings::env_name(settings::FILE_FLAG)));
    let ours = env.keys().filter(|name| name.starts_with(OURS));
    match ours.into_iter().find(|name| !known.contains(*name)) {
        None => Ok(()),
        Some(name) => Err(ConfigError::Unknown {
            name: format!("environment variable {name}"),
            nearest: nearest(name, &known),
        }),
    }
}

fn nearest(name: &str, known: &[String]) -> Option<String> {
    let likeness = |known: &String| strsim::normalized_damerau_levenshtein(name, known);
    let best = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    Some(best.clone()).filter(|best| likeness(best) >= NEAR)
}

type FileValues = BTreeMap<String, (Source, Vec<String>)>;

/// What is known while a file's tables are walked.
struct Walk<'a> {
    settings: &'a [Setting],
    file: String,
    values: FileValues,
}

fn read_file(
    settings: &[Setting],
    file: &std::path::Path,
    read: Read<'_>,
) -> Result<FileValues, ConfigError> {
    let name = file.display().to_string();
    let text = read(file)
        .map_err(|error| ConfigError::Unreadable { file: name.clone(), why: error.to_string() })?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        ConfigError::Syntax { file: name.clone(), why: error.to_string() }
    })?;
    let mut walk = Walk { settings, file: name, values: BTreeMap::new() };
    for (key, value) in &table {
        walk.visit(key, value)?;
    }
    Ok(walk.values)
}

impl Walk<'_> {
    fn visit(&mut self, key: &str, value: &toml::Value) -> Result<(), ConfigError> {
        let below = format!("{key}.");
        let is_table = self.settings.iter().any(|setting| setting.key.starts_with(&below));
        let wanted = match value {
            toml::Value::Table(table) if is_table || !table.is_empty() => {
                return table.iter().try_for_each(|(k, v)| self.visit(&format!("{below}{k}"), v));
            }
            // `listen = "ADDRESS"` is the short form of its table's one key that matters most.
            _ if key == "listen" => "listen.bind",
            _ => key,
        };
        let Some(setting) = self.settings.iter().find(|setting| setting.key == wanted) else {
            return Err(self.unknown(key));
        };
        let items = match value {
            toml::Value::Array(array) => {
                array.iter().map(|item| self.scalar(key, item)).collect::<Result<_, _>>()?
            }
            scalar => split(setting, &self.scalar(key, scalar)?),
        };
        let source = Source::File(key.to_owned(), self.file.clone());
        self.values.insert(setting.key.clone(), (source, items));
        Ok(())
    }

    fn scalar(&self, key: &str, value: &toml::Value) -> Result<String, ConfigError> {
        match value {
            toml::Value::String(text) => Ok(text.clone()),
            toml::Value::Integer(number) => Ok(number.to_string()),
            toml::Value::Float(number) => Ok(number.to_string()),
            toml::Value::Boolean(flag) => Ok(flag.to_string()),
            toml::Value::Datetime(_) | toml::Value::Array(_) | toml::Value::Table(_) => {
                Err(ConfigError::Invalid {
                    source: Source::File(key.to_owned(), self.file.clone()).to_string(),
                    why: format!(
                        "takes no {}: write a string, a number, a boolean or a list of them",
                        value.type_str()
                    ),
                })
            }
        }
    }

    fn unknown(&self, key: &str) -> ConfigError {
        let known: Vec<String> = self.settings.iter().map(|setting| setting.key.clone()).collect();
        ConfigError::Unknown {
            name: format!("key `{key}` in {}", self.file),
            nearest: nearest(key, &known),
        }
    }
}
