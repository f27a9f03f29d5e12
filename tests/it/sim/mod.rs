//! The relay in a simulated world: real QUIC, real mailboxes, virtual time, one thread.
//!
//! A run is named by its seed. A failing one prints the command that replays it.

mod client;
mod link;
mod memory;
mod oracle;
mod pattern;
mod publisher;
mod random;
mod tls;
mod viewer;
mod wire;
mod world;

mod acceptance;
mod control;
mod fake;
mod faults;
mod flights;
mod garbage;
mod ranges;
mod scenarios;
mod trickle;

/// Seeds of a scenario unless `SIM_SEEDS` says otherwise.
const SEEDS: u64 = 40;

struct Replay {
    name: &'static str,
    seed: u64,
}

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { name, seed } = self;
            eprintln!("replay: SEED={seed} cargo test --test it sim::{name} -- --exact");
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Runs a scenario once, with the seed that `SEED` names or with 0.
fn once(name: &'static str, run: impl Fn(u64)) {
    let seed = number("SEED").unwrap_or(0);
    let _replay = Replay { name, seed };
    run(seed);
}

/// Runs a scenario with the seed that `SEED` names, or with many.
fn seeds(name: &'static str, run: impl Fn(u64)) {
    let range = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SIM_SEEDS").unwrap_or(SEEDS),
    };
    for seed in range {
        let _replay = Replay { name, seed };
        run(seed);
    }
}
