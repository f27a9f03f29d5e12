//! The text that metrics are rendered to.

use std::collections::BTreeMap;

use corelay::metrics::{Counters, Gauges, ReasonCounts, Snapshot, render};
use corelay::name::ShardId;

/// Series and value of each line that is no comment.
fn series(text: &str) -> BTreeMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            assert!(series.starts_with("corelay_"), "{line}");
            (series, value.parse().expect("a number"))
        })
        .collect()
}

#[test]
fn every_counter_and_gauge_is_rendered_once_and_labelled() {
    let mut first = Snapshot::new(ShardId(0));
    first.counters.frames_in = 7;
    first.gauges.sessions = 3;
    let text = render(&[first, Snapshot::new(ShardId(1))]);
    assert!(text.ends_with("# EOF\n"));
    let series = series(&text);
    for name in Counters::NAMES {
        assert_eq!(text.matches(&format!("# TYPE corelay_{name} counter\n")).count(), 1, "{name}");
        for shard in [0, 1] {
            let key = format!("corelay_{name}_total{{shard=\"{shard}\"}}");
            assert!(series.contains_key(key.as_str()), "{key}");
        }
    }
    for name in Gauges::NAMES {
        assert!(series.contains_key(format!("corelay_{name}{{shard=\"1\"}}").as_str()), "{name}");
    }
    assert!((series["corelay_frames_in_total{shard=\"0\"}"] - 7.0).abs() < f64::EPSILON);
    assert!((series["corelay_sessions{shard=\"0\"}"] - 3.0).abs() < f64::EPSILON);
    let version = env!("CARGO_PKG_VERSION");
    assert!(series.contains_key(format!("corelay_build_info{{version=\"{version}\"}}").as_str()));
}

#[test]
fn reasons_are_labels() {
    let mut snapshot = Snapshot::new(ShardId(0));
    snapshot.violations.hit("bad varint");
    snapshot.violations.hit("bad varint");
    snapshot.limits.hit("tracks");
    let text = render(&[snapshot]);
    let series = series(&text);
    let violations = series["corelay_violations_total{shard=\"0\",reason=\"bad varint\"}"];
    assert!((violations - 2.0).abs() < f64::EPSILON);
    assert!(series.contains_key("corelay_limit_hits_total{shard=\"0\",limit=\"tracks\"}"));
    let mut counts = ReasonCounts::default();
    counts.hit("a");
    assert_eq!((counts.get("a"), counts.get("b")), (1, 0));
}

#[test]
fn delivery_times_are_seconds_in_cumulative_buckets() {
    let mut snapshot = Snapshot::new(ShardId(0));
    for us in [50, 100, 1_500, 2_000_000, 59_000_000] {
        snapshot.delivery_us.saturating_record(us);
    }
    let text = render(&[snapshot]);
    let series = series(&text);
    let bucket = |le: &str| {
        series[format!("corelay_delivery_seconds_bucket{{le=\"{le}\",shard=\"0\"}}").as_str()]
    };
    let counts = ["0.0001", "0.001", "0.002", "1.0", "5.0", "10.0", "+Inf"].map(bucket);
    assert_eq!(counts, [2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0]);
    assert!((series["corelay_delivery_seconds_count{shard=\"0\"}"] - 5.0).abs() < f64::EPSILON);
    let sum = series["corelay_delivery_seconds_sum{shard=\"0\"}"];
    assert!((sum - 61.001_65).abs() < 0.01 * 61.0, "{sum}");
}
