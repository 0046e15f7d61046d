//! A relay in a program of one's own: between two interfaces, statistics on standard output.
//!
//! ```text
//! cargo run --example relay -- r0 r1        (needs CAP_NET_RAW)
//! cargo run --example relay -- r0 r1 10     ends after ten seconds
//! ```

use std::{env, process::ExitCode, thread, time::Duration};

use l2relay::{
    config::{Config, PortName},
    error::{Error, Result},
    relay::Relay,
};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match relay(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn relay(args: &[String]) -> Result<()> {
    let (ports, seconds) = read(args).map_err(|mistake| Error::Config(vec![mistake]))?;
    let relay = Relay::start(Config {
        pairs: vec![ports],
        ..Config::default()
    })?;
    relay.describe().iter().for_each(|line| eprintln!("{line}"));

    let mut before = relay.snapshot();
    for _ in 0..seconds {
        thread::sleep(Duration::from_secs(1));
        let now = relay.snapshot().since(&before);
        println!("{now}");
        before = now;
    }
    // Sends what is held, and counts for the last time. Dropping the relay stops it as well.
    print!("{}", relay.stop());
    Ok(())
}

/// The two ports, and for how long.
fn read(args: &[String]) -> std::result::Result<([PortName; 2], u64), String> {
    let (a, b, seconds) = match args {
        [a, b] => (a, b, u64::MAX),
        [a, b, seconds] => {
            let seconds = seconds
                .parse()
                .map_err(|_| format!("{seconds:?} is no number of seconds"))?;
            (a, b, seconds)
        }
        _ => return Err("usage: relay INTERFACE INTERFACE [SECONDS]".into()),
    };
    Ok(([a.parse()?, b.parse()?], seconds))
}
