use std::sync::atomic::AtomicU64;
fn main() {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap();
    let e = lab::named(&name).unwrap();
    let mut p = e.parameters();
    for a in args {
        if a == "modern" {
            for (n, v) in e.modern() {
                p.set(n, *v).unwrap();
            }
            continue;
        }
        let (n, v) = a.split_once('=').unwrap();
        p.set(n, v.parse().unwrap()).unwrap();
    }
    let done = AtomicU64::new(0);
    let t = std::time::Instant::now();
    let seed = std::env::var("SEED").map_or(1, |s| s.parse().unwrap());
    let r = e.simulate(&lab::Run { parameters: &p, seed, done: &done });
    println!("steps {} of {} in {:?}", done.into_inner(), e.steps(&p), t.elapsed());
    for t in &r.tables {
        println!("{} [{}]: {:?}", t.title, t.unit, t.columns);
        for (n, row) in t.rows.iter().zip(&t.cells) {
            let c: Vec<String> = row
                .iter()
                .map(|c| match c.difference_percent() {
                    Some(d) => format!("{:.1}({:+.1}%)", c.simulated.unwrap(), d),
                    None => format!("{:.2}", c.simulated.unwrap()),
                })
                .collect();
            println!("  {n}: {}", c.join("  "));
        }
    }
    for f in &r.findings {
        println!("{} {}", if f.holds { "ok  " } else { "FAIL" }, f.text);
    }
    if std::env::var("NOTES").is_ok() {
        for n in &r.notes {
            println!("- {n}");
        }
        for p in &r.plots {
            println!("{p:?}");
        }
    }
}
