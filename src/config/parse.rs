//! From the text of one value to its type. Each parser says what is wrong and what it takes; who
//! calls it says where the text is from.

use std::net::SocketAddr;
use std::time::Duration;

use tracing_subscriber::filter::EnvFilter;

use super::{Congestion, KNOWN_VERSIONS};
use crate::name::Path;

/// The largest core number that is taken for one.
const CORE_MAX: usize = 4095;

/// Any text but none.
pub(super) fn text(raw: &str) -> Result<String, String> {
    if raw.is_empty() { Err("is empty: name something".to_owned()) } else { Ok(raw.to_owned()) }
}

pub(super) fn boolean(raw: &str) -> Result<bool, String> {
    raw.parse().map_err(|_| format!("`{raw}` is no boolean: write true or false"))
}

pub(super) fn integer(min: u64, max: u64) -> impl Fn(&str) -> Result<u64, String> {
    limit(false, min, max)
}

/// An integer within bounds; when it counts bytes it may end with a binary unit.
pub(super) fn limit(bytes: bool, min: u64, max: u64) -> impl Fn(&str) -> Result<u64, String> {
    move |raw| {
        let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
        let unit = units.iter().find_map(|&(unit, shift)| Some((raw.strip_suffix(unit)?, shift)));
        let (digits, shift) = unit.filter(|_| bytes).unwrap_or((raw, 0));
        let takes = if bytes { ", which may end with KiB, MiB or GiB" } else { "" };
        let number: u64 = digits
            .trim_end()
            .parse()
            .map_err(|_| format!("`{raw}` is no number: write one from {min} to {max}{takes}"))?;
        number
            .checked_mul(1 << shift)
            .filter(|number| (min..=max).contains(number))
            .ok_or_else(|| format!("{raw} is out of range: write a number from {min} to {max}"))
    }
}

/// A number with a unit: `200us`, `500ms`, `10s`, `2m`.
pub(super) fn duration(min: Duration, max: Duration) -> impl Fn(&str) -> Result<Duration, String> {
    move |raw| {
        let split = raw.find(|c: char| !c.is_ascii_digit()).unwrap_or(raw.len());
        let (digits, unit) = raw.split_at(split);
        let us_per_unit = match unit {
            "us" => Some(1),
            "ms" => Some(1_000),
            "s" => Some(1_000_000),
            "m" => Some(60_000_000),
            _ => None,
        };
        let us = us_per_unit.zip(digits.parse::<u64>().ok());
        let Some((us_per_unit, number)) = us else {
            return Err(format!(
                "`{raw}` is no duration: write a whole number and us, ms, s or m, such as 10s"
            ));
        };
        number
            .checked_mul(us_per_unit)
            .map(Duration::from_micros)
            .filter(|duration| (min..=max).contains(duration))
            .ok_or_else(|| format!("{raw} is out of range: write {min:?} to {max:?}"))
    }
}

/// `HOST:PORT`; the host may be a name.
pub(super) fn address(raw: &str) -> Result<String, String> {
    let is_name = |host: &str| {
        !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
    };
    let named = raw
        .rsplit_once(':')
        .is_some_and(|(host, port)| is_name(host) && port.parse::<u16>().is_ok());
    if named || raw.parse::<SocketAddr>().is_ok() {
        return Ok(raw.to_owned());
    }
    Err(format!("`{raw}` is no address: write HOST:PORT, such as 127.0.0.1:4443 or [::1]:4443"))
}

/// A host name or address, as a certificate names it.
pub(super) fn host(raw: &str) -> Result<String, String> {
    let is_name = raw.chars().all(|c| c.is_ascii_alphanumeric() || "-._*".contains(c));
    let is_address = raw.parse::<std::net::IpAddr>().is_ok();
    if !raw.is_empty() && (is_name || is_address) {
        return Ok(raw.to_owned());
    }
    Err(format!("`{raw}` is no host: write a name or an address without a port"))
}

pub(super) fn version(raw: &str) -> Result<String, String> {
    if KNOWN_VERSIONS.contains(&raw) {
        return Ok(raw.to_owned());
    }
    let known = KNOWN_VERSIONS.join(", ");
    Err(format!("`{raw}` is no version that this relay speaks: name one or more of {known}"))
}

pub(super) fn congestion(raw: &str) -> Result<Congestion, String> {
    match raw {
        "loss" => Ok(Congestion::Loss),
        "delay" => Ok(Congestion::Delay),
        _ => Err(format!("`{raw}` is no congestion control: write loss or delay")),
    }
}

pub(super) fn ack_frequency(raw: &str) -> Result<u32, String> {
    let packets = integer(0, 1000)(raw)?;
    u32::try_from(packets).map_err(|_| format!("{raw} is out of range"))
}

/// `**` (everything, the empty path) or `PREFIX/**`.
pub(super) fn public(raw: &str) -> Result<Path, String> {
    let prefix = match raw {
        "**" | "/**" => "",
        _ => raw.strip_suffix("/**").ok_or_else(|| {
            let name = raw.trim_end_matches(['*', '/']);
            if raw.contains('*') {
                format!("`{raw}` is no pattern of this version: write `**` or `PREFIX/**`")
            } else {
                format!(
                    "`{raw}` has no wildcard and would open one path only: write `{name}/**` for \
                     all below it, or `**` for everything"
                )
            }
        })?,
    };
    if prefix.contains('*') {
        return Err(format!(
            "`{raw}` has a wildcard inside: in this version only the end may be `/**`"
        ));
    }
    Path::parse(prefix).map_err(|_| format!("`{raw}` has too many segments: use a shorter prefix"))
}

/// A level, or filter directives.
pub(super) fn level(raw: &str) -> Result<String, String> {
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    let is_plain = !raw.contains(['=', ',', '[']);
    if is_plain && !levels.contains(&raw.to_ascii_lowercase().as_str()) {
        return Err(format!(
            "`{raw}` is no level: write one of {}, or directives such as info,corelay=debug",
            levels.join(", ")
        ));
    }
    filter(raw)
}

/// Filter directives, as `RUST_LOG` takes them.
pub(super) fn filter(raw: &str) -> Result<String, String> {
    match EnvFilter::builder().parse(raw) {
        Ok(_) => Ok(raw.to_owned()),
        Err(error) => Err(format!(
            "`{raw}` does not parse ({error}): write directives such as info,corelay=debug"
        )),
    }
}

/// A list of cores, such as `2` or `2-5,8`; sorted, each once, never empty.
pub(super) fn cores(raw: &str) -> Result<Vec<usize>, String> {
    let wrong =
        || format!("`{raw}` is no list of cores: write numbers and ranges, such as 2 or 2-5,8");
    let mut cores = Vec::new();
    for part in raw.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: usize = first.trim().parse().map_err(|_| wrong())?;
        let last: usize = last.trim().parse().map_err(|_| wrong())?;
        if first > last || last > CORE_MAX {
            return Err(wrong());
        }
        cores.extend(first..=last);
    }
    cores.sort_unstable();
    cores.dedup();
    Ok(cores)
}
