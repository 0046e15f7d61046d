//! `l2relay top`: a relay's ports and lanes on a terminal, live.
//!
//! Statistics are fetched in a thread of their own, so that keys work while a relay is slow to answer. What is shown is in
//! [`model`], how it looks in [`draw`].

mod draw;
mod model;

use std::{
    io::{self, IsTerminal, Stdout},
    os::fd::AsFd,
    panic,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use crossbeam::channel::{Receiver, Sender, bounded};
use ratatui::{Terminal, buffer::Buffer, layout::Rect, widgets::Widget};
use ratatui_crossterm::{
    CrosstermBackend,
    crossterm::{
        cursor::Show,
        event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
        execute,
        terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
    },
};

use self::model::{Key, News, Top};
use super::{
    print,
    remote::{Target, one, stats, written},
    run::interval,
};
use crate::{
    control::client::Client,
    error::Error,
    sys::{event::Poller, signal::Signals},
};

/// Show a relay's ports and lanes on the terminal, live
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Keys: q quits, space pauses, s sorts by another column, r starts plots and marks anew, arrows and page keys scroll.
When the relay ends, top says so and waits for one of that name.")]
pub struct TopArgs {
    /// Which relay.
    #[command(flatten)]
    pub target: Target,
    /// Refresh every S seconds: 0.01 to 86400
    #[arg(long, value_name = "S", default_value = "1")]
    pub interval: String,
    /// Print one interval as plain text and end: needs no terminal
    #[arg(long)]
    pub once: bool,
}

/// How often keys and news are looked at.
const LOOK: Duration = Duration::from_millis(50);

impl TopArgs {
    /// Shows it until the user has seen enough.
    ///
    /// # Errors
    /// No relay can be asked, or there is no terminal.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let every = interval("--interval", &self.interval).map_err(one)?;
        let every = Duration::from_secs_f64(every);
        if !self.once && !io::stdout().is_terminal() {
            return Err(one(
                "top draws on a terminal, and standard output is none: use l2relay top --once, or l2relay stats --watch 1".into(),
            ));
        }
        let relay = self.target.connect()?;
        let mut top = Top::new(relay.name(), every, is_utf8());
        if self.once {
            return once(relay, top, every);
        }
        let (fetched, news) = bounded(1);
        let failed = |source| Error::system("draw on", "the terminal", source, "");
        // Before the thread starts: it is to leave them to us.
        let signals = Signals::block(true).map_err(failed)?;
        thread::spawn(move || fetch(relay, every, &fetched));
        let mut screen = Screen::open().map_err(failed)?;
        end_on_signal(signals).map_err(failed)?;
        watch(&mut screen, &mut top, &news).map_err(failed)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn once(mut relay: Client, mut top: Top, every: Duration) -> Result<ExitCode, Error> {
    for wait in [every, Duration::ZERO] {
        top.update(News::Snapshot(Box::new(stats(&mut relay, false)?)));
        thread::sleep(wait);
    }
    let columns = std::env::var("COLUMNS").ok();
    let columns = columns.and_then(|text| text.parse().ok());
    // Some that have no terminal say 0.
    let width = columns
        .filter(|width| (1..=1000).contains(width))
        .unwrap_or(80);
    let area = Rect::new(0, 0, width, top.height());
    top.resize(area.height);
    let mut buffer = Buffer::empty(area);
    top.render(area, &mut buffer);
    written(print(&draw::plain(&buffer), false))
}

/// Asks again and again; when the relay is gone, looks for one of that name.
fn fetch(mut relay: Client, every: Duration, news: &Sender<News>) {
    let name = relay.name().to_owned();
    let mut next = Instant::now();
    loop {
        let item = match stats(&mut relay, false) {
            Ok(snapshot) => News::Snapshot(Box::new(snapshot)),
            Err(error) => {
                if let Ok(again) = Client::connect(Some(&name)) {
                    relay = again;
                }
                News::Silent(error.to_string())
            }
        };
        // The screen is closed: nobody wants more.
        if news.send(item).is_err() {
            return;
        }
        next = (next + every).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Each of them ends it: SIGINT, SIGTERM, SIGHUP of a terminal that is gone. In a thread of its own: of such a terminal crossterm reads the
/// end again and again, and does not come back.
fn end_on_signal(mut signals: Signals) -> io::Result<()> {
    let wait = move || {
        let mut poller = Poller::default();
        while matches!(signals.next(), Ok(None)) {
            let _ = poller.wait(&[signals.as_fd()], None);
        }
        give_back();
        std::process::exit(0);
    };
    let thread = thread::Builder::new().name("l2relay-signals".into());
    thread.spawn(wait).map(drop)
}

fn watch(screen: &mut Screen, top: &mut Top, news: &Receiver<News>) -> io::Result<()> {
    let mut changed = true;
    loop {
        if changed {
            screen.0.draw(|frame| {
                top.resize(frame.area().height);
                frame.render_widget(&*top, frame.area());
            })?;
        }
        changed = false;
        if event::poll(LOOK)? {
            changed = true;
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
                && !pressed(top, key)
            {
                return Ok(());
            }
        }
        for item in news.try_iter() {
            top.update(item);
            changed = true;
        }
    }
}

/// Obeys a key. `false`: leave.
fn pressed(top: &mut Top, key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    let key = match key.code {
        KeyCode::Char('c') if control => return false,
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char(' ') => Key::Pause,
        KeyCode::Char('s') => Key::Sort,
        KeyCode::Char('r') => Key::Anew,
        KeyCode::Up | KeyCode::Char('k') => Key::Scroll(-1),
        KeyCode::Down | KeyCode::Char('j') => Key::Scroll(1),
        KeyCode::PageUp => Key::Scroll(-10),
        KeyCode::PageDown => Key::Scroll(10),
        KeyCode::Home => Key::Scroll(isize::MIN),
        KeyCode::End => Key::Scroll(isize::MAX),
        _ => return true,
    };
    top.press(key);
    true
}

/// The terminal while it is ours: given back as it was, whatever happens.
struct Screen(Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    fn open() -> io::Result<Self> {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            give_back();
            before(info);
        }));
        enable_raw_mode()?;
        // Made first: if the rest fails, it is dropped and the terminal given back.
        let screen = Terminal::new(CrosstermBackend::new(io::stdout())).map(Self);
        if screen.is_err() {
            give_back();
        }
        execute!(io::stdout(), EnterAlternateScreen)?;
        screen
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn give_back() {
    // A terminal that is gone needs nothing.
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// Whether the terminal shows more than ASCII, as far as the locale tells.
fn is_utf8() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|value| !value.is_empty());
    locale.is_some_and(|value| {
        let value = value.to_ascii_lowercase();
        value.contains("utf-8") || value.contains("utf8")
    })
}
