//! What a call of a program costs: `cargo run --release -p awase-transactions --example call_cost`.
//!
//! On a simulated host, whose disk is not touched: tables are small and stay in memory, and nothing is committed.

use std::time::Instant;

use kernel::ForcedUnitAccess;
use testkit::scene::disk::Server;
use transactions::program::{BANK, Program, Programs};
use transactions::store::Database;
use transactions::{Monitor, Value};

const CALLS: u32 = 20_000;

fn main() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("bank.wasm"), BANK).expect("written");
    let begin = Instant::now();
    Program::compile("bank", BANK).expect("it is a program");
    println!("compiling the bank     {:>8.1} ms, with the runtime", begin.elapsed().as_secs_f64() * 1e3);
    let begin = Instant::now();
    let (programs, faults) = Programs::load(directory.path());
    assert!(faults.is_empty(), "{faults:?}");
    println!("loading it             {:>8.1} ms", begin.elapsed().as_secs_f64() * 1e3);
    let idle = "(module (func (export \"idle\")))".as_bytes();
    let idle = wat::parse_bytes(idle).expect("WebAssembly's text");
    let (_, idle) = Program::compile("idle", &idle).expect("it is a program");
    let server = Server::new(1);
    let volume = server.volume(ForcedUnitAccess::Never);
    server.run(async move |cpu, _, _| {
        let database = Database::open(&cpu, volume).await.expect("a new database");
        let monitor = Monitor::new("bank".to_owned(), database, programs);
        let bank = |name| monitor.programs().find(name).expect("a function of the bank");
        let one = Value::BigInt(1);
        monitor
            .call(&cpu, &bank("balance"), std::slice::from_ref(&one))
            .await
            .expect("the first call fills the accounts");
        let two = Value::BigInt(2);
        for (what, function, arguments) in [
            ("a call of nothing", idle[0].clone(), vec![]),
            ("one read (balance)", bank("balance"), vec![one.clone()]),
            ("two of each (transfer)", bank("transfer"), vec![one.clone(), two, one.clone()]),
            ("1,000 reads (total)", bank("total"), vec![]),
        ] {
            let calls = if what.contains("1,000") { CALLS / 100 } else { CALLS };
            for warm in [true, false] {
                let begin = Instant::now();
                for _ in 0..calls {
                    let mut transaction = monitor.begin();
                    function.call(&cpu, &arguments, &mut transaction).await.expect("it succeeds");
                }
                if !warm {
                    println!("{what:<22} {:>8.2} µs", begin.elapsed().as_secs_f64() * 1e6 / f64::from(calls));
                }
            }
        }
    });
}
