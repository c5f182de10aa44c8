//! The state machine keeps its invariants in every state that can be reached.

use onetake_core::OnUnknown::*;
use onetake_sim::model::state::*;
use onetake_sim::model::{Config, Model, check};

fn assert_holds(name: &str, config: Config) {
    match check(&Model::new(config)) {
        Ok(stats) => {
            eprintln!("{name}: {stats}");
            for (sight, count) in &stats.sights {
                eprintln!("  {count:>9} x {}", sight.name());
            }
            assert!(!stats.vacuous, "{name}: the bounds are too narrow");
        }
        Err(violation) => panic!("{name}: {violation}"),
    }
}

#[test]
fn x() {
    let v = |k: &str, d: usize| std::env::var(k).map_or(d, |t| t.parse().unwrap());
    let on_unknown = if v("FAIL", 0) == 1 {
        PerKey { a: Fail, b: Retry }
    } else {
        PerKey { a: Retry, b: Fail }
    };
    let tick = std::time::Duration::from_micros(v("TICK", 1) as u64);
    assert_holds(
        "fail and retry",
        Config {
            on_unknown,
            tick,
            ticks: v("TICKS", 4) as u32,
            room: PerKey {
                a: 3,
                b: v("ROOM", 1),
            },
            ttl: v("TTL", 2) as u32,
            ..Config::default()
        },
    );
}
