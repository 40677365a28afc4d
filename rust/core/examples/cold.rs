use headgate_core::{answer::*, hash::KeyHash, limit::*, table::*};
use std::time::Instant;
fn main() {
    for n in [10_000usize, 100_000, 1_000_000, 10_000_000] {
        let t = Table::new([7; 16], Bounds { max_keys: n, max_log_blocks: 10, on_full: OnFull::Forget });
        let l = t.register("a", Limit::new(Algorithm::SlidingWindow, 1, 1_000_000, 3_600_000_000, 0).unwrap()).unwrap();
        let mode = Mode { commit: true, max_delay_us: None };
        let key = |i: usize| t.seed().text(format!("user:{i}").as_bytes());
        for i in 0..n {
            t.apply(&[Check { limit: &l, key: key(i), cost: 1, shadow: false }], 1_790_000_000_000_000, mode);
        }
        let mut x = 88172645463325252u64;
        let keys: Vec<KeyHash> = (0..200_000)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                key((x % n as u64) as usize)
            })
            .collect();
        for pre in [0, 1, 8] {
            let t0 = Instant::now();
            let mut acc = 0i64;
            for (i, k) in keys.iter().enumerate() {
                // dependent chain through acc&0
                let k = KeyHash { stripe: k.stripe ^ (acc as u64 & 1 << 62), tag: k.tag };
                let c = Check { limit: &l, key: k, cost: 1, shadow: false };
                if pre == 1 {
                    t.fetch(&c);
                }
                if pre == 8 && i + 8 < keys.len() {
                    t.fetch(&Check { limit: &l, key: keys[i + 8], cost: 1, shadow: false });
                }
                let a = t.apply(&[c], 1_790_000_000_000_000 + i as i64, mode);
                acc += a.readings.all()[0].remaining & 1;
            }
            println!("{n} prefetch {pre} {:.1} ns {acc}", t0.elapsed().as_nanos() as f64 / keys.len() as f64);
        }
    }
}
