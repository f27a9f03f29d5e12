//! Why a configuration is refused.
//! Each text says what is wrong, where, and what to do.

use std::fmt;

/// Why a configuration is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigError {
    /// The command line does not parse; the text is ready to print.
    Usage(String),
    /// The configuration file cannot be read.
    Unreadable {
        /// The file.
        file: String,
        /// What reading it said.
        why: String,
    },
    /// The configuration file is no TOML.
    Syntax {
        /// The file.
        file: String,
        /// What the parser said, with the place.
        why: String,
    },
    /// A name that no setting has.
    Unknown {
        /// What the name is and where, such as "key `quick.gso` in relay.toml".
        name: String,
        /// The known name nearest to it, if one is near.
        nearest: Option<String>,
    },
    /// A value that its setting does not take.
    Invalid {
        /// Where the value is from, such as `--quic-gso`.
        source: String,
        /// What is wrong with it and what it takes.
        why: String,
    },
    /// Settings that do not go together.
    Conflict(String),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) => f.write_str(text.trim_end()),
            Self::Unreadable { file, why } => write!(
                f,
                "cannot read the configuration file {file}: {why}; name a readable file, or none \
                 to run on the defaults"
            ),
            Self::Syntax { file, why } => write!(f, "{file} is no TOML: {}", why.trim_end()),
            Self::Unknown { name, nearest: Some(nearest) } => {
                write!(f, "unknown {name}: did you mean `{nearest}`?")
            }
            Self::Unknown { name, nearest: None } => {
                write!(f, "unknown {name}: corelay --help lists every setting")
            }
            Self::Invalid { source, why } => write!(f, "{source}: {why}"),
            Self::Conflict(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for ConfigError {}
