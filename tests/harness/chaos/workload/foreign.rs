//! A client in another process: an idempotent producer and a consumer of a family that is not Rust's.
//!
//! It is told line by line what to do and says what came of it; the history is written here. So what is sent is written
//! before it is sent, as everywhere.
//!
//! To it: `S op topic partition value,value` sends, `C generation topic/partition …` reads these from their beginning and
//! nothing else any more; at the end of its input it ends. From it: `A op index offset` and `U op index why` for each value,
//! `P generation topic partition offset:value,…` for what was read, `O generation topic partition` for a position out of range.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::super::board::{Board, Place, SLOTS};
use super::super::families::Family;
use super::super::history::{Event, Outcome};
use super::value_of;
use crate::sim::rng::Rng;

/// Between two sends.
const PACE: Duration = Duration::from_millis(25);
/// For the last acknowledgements.
const LAST_ANSWERS: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

/// What its reader has learned.
#[derive(Default)]
struct Told {
    acks: AtomicU64,
    reads: AtomicU64,
    /// Values that are not answered for.
    open: AtomicU64,
    /// A position was out of range: the consumer has to begin anew.
    lost: AtomicBool,
    /// Of the present generation: the next offset.
    next: Mutex<(u64, BTreeMap<String, i64>)>,
}

pub struct Foreign {
    name: &'static str,
    board: Arc<Board>,
    child: Mutex<Child>,
    input: Mutex<Option<ChildStdin>>,
    told: Arc<Told>,
    generation: AtomicU64,
    reader: Mutex<Option<JoinHandle<()>>>,
}

impl Foreign {
    /// Starts the program of a family; what it says on stderr goes to a file in `dir`.
    pub fn start(board: &Arc<Board>, family: Family, line: &[PathBuf], dir: &Path) -> Arc<Self> {
        let errors = File::create(dir.join(format!("{family}.err"))).expect("a file for its errors");
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).arg(board.fleet.bootstrap());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("piped"));
        let told = Arc::new(Told::default());
        let reader = std::thread::spawn({
            let (board, told, name) = (board.clone(), told.clone(), family.name());
            move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    hear(&board, &told, name, &line);
                }
            }
        });
        Arc::new(Self {
            name: family.name(),
            board: board.clone(),
            child: Mutex::new(child),
            input: Mutex::new(input),
            told,
            generation: AtomicU64::new(0),
            reader: Mutex::new(Some(reader)),
        })
    }

    fn tell(&self, line: &str) {
        let mut input = self.input.lock();
        if let Some(pipe) = input.as_mut()
            && writeln!(pipe, "{line}").and_then(|()| pipe.flush()).is_err()
        {
            *input = None;
            self.broken("ended by itself".to_owned());
        }
    }

    fn broken(&self, what: String) {
        self.board.history.write(Event::Broken { node: 0, what: format!("{}: {what}", self.name) });
    }

    /// Sends and reads until the clients are to stop; blocks.
    pub fn work(&self, mut rng: Rng) {
        let board = &*self.board;
        let mut read = Vec::new();
        while !board.is_stopped() {
            std::thread::sleep(Duration::from_micros(rng.around(PACE.as_micros() as u64)));
            let live = board.live();
            if read != live || self.told.lost.swap(false, Ordering::Relaxed) {
                self.read_from_the_beginning(&live);
                read = live;
            }
            let place = board.slot(rng.below(SLOTS.into()) as u8);
            let values = board.history.next_values(rng.within(1, 4));
            let op = board.history.next_op();
            board.count(&place, values.len());
            self.told.open.fetch_add(values.len() as u64, Ordering::Relaxed);
            let list = values.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
            let (by, at) = (format!("{}-producer", self.name), place.name());
            board.history.write(Event::Send { op, by, at, values, once: true, ordered: true });
            self.tell(&format!("S {op} {} {} {list}", place.topic, place.partition));
        }
        let until = Instant::now() + LAST_ANSWERS;
        while self.told.open.load(Ordering::Relaxed) > 0 && Instant::now() < until {
            std::thread::sleep(POLL);
        }
        let (acks, reads) = (self.told.acks.load(Ordering::Relaxed), self.told.reads.load(Ordering::Relaxed));
        eprintln!("{:7.1} s  {}: {acks} acknowledged, {reads} read", board.history.seconds(), self.name);
        if acks == 0 || reads == 0 {
            self.broken(format!("took no part: {acks} acknowledged, {reads} read"));
        }
    }

    /// Another assignment is another reader: what it had fetched for the old one may still come.
    fn read_from_the_beginning(&self, places: &[Place]) {
        let generation = 1 + self.generation.fetch_add(1, Ordering::Relaxed);
        *self.told.next.lock() = (generation, BTreeMap::new());
        let by = reader_name(self.name, generation);
        for place in places {
            self.board.history.write(Event::Assign { by: by.clone(), at: place.name(), offset: 0 });
        }
        let list: Vec<String> = places.iter().map(Place::name).collect();
        self.tell(&format!("C {generation} {}", list.join(" ")));
    }

    /// Reads these from the beginning to where they end; what did not end in time stays out of the answer. Blocks.
    pub fn drain(&self, ends: &BTreeMap<Place, i64>, limit: Duration) -> BTreeMap<Place, i64> {
        let until = Instant::now() + limit;
        let places: Vec<Place> = ends.keys().cloned().collect();
        self.read_from_the_beginning(&places);
        let mut read = BTreeMap::new();
        while read.len() < ends.len() && Instant::now() < until {
            std::thread::sleep(POLL);
            let next = self.told.next.lock();
            let came_to = |place: &Place| next.1.get(&place.name()).copied().unwrap_or(0);
            let ended = ends.iter().filter(|(place, end)| came_to(place) >= **end);
            read = ended.map(|(place, _)| (place.clone(), came_to(place))).collect();
        }
        read
    }

    pub fn reader_name(&self) -> String {
        reader_name(self.name, self.generation.load(Ordering::Relaxed))
    }
}

fn reader_name(family: &str, generation: u64) -> String {
    format!("{family}-consumer.{generation}")
}

/// One line of it.
fn hear(board: &Board, told: &Told, name: &str, line: &str) {
    let words: Vec<&str> = line.splitn(5, ' ').collect();
    let number = |index: usize| words.get(index).and_then(|word| word.parse::<u64>().ok());
    match (words[0], number(1), number(2)) {
        ("A", Some(op), Some(first)) => {
            told.acks.fetch_add(1, Ordering::Relaxed);
            told.open.fetch_sub(1, Ordering::Relaxed);
            let offset = words.get(3).and_then(|word| word.parse().ok()).unwrap_or(-1);
            board.history.write(Event::Sent { op, first: first as usize, count: 1, offset });
        }
        ("U", Some(op), Some(first)) => {
            told.open.fetch_sub(1, Ordering::Relaxed);
            let (outcome, why) = (Outcome::Unknown, words[3..].join(" "));
            board.history.write(Event::Unsent { op, first: first as usize, count: 1, outcome, why });
        }
        ("P", Some(generation), None) if words.len() == 5 => {
            let at = format!("{}/{}", words[2], words[3]);
            let records: Vec<(i64, u64)> = words[4]
                .split(',')
                .filter_map(|record| record.split_once(':'))
                .filter_map(|(offset, value)| Some((offset.parse().ok()?, value_of(Some(value.as_bytes())))))
                .collect();
            told.reads.fetch_add(records.len() as u64, Ordering::Relaxed);
            let next = records.last().map_or(0, |(offset, _)| offset + 1);
            board.history.write(Event::Poll { by: reader_name(name, generation), at: at.clone(), records });
            let mut known = told.next.lock();
            if known.0 == generation {
                known.1.insert(at, next);
            }
        }
        ("O", Some(generation), None) if words.len() == 4 => {
            let at = format!("{}/{}", words[2], words[3]);
            let offset = told.next.lock().1.get(&at).copied().unwrap_or(0);
            board.history.write(Event::OutOfRange { by: reader_name(name, generation), at, offset });
            told.lost.store(true, Ordering::Relaxed);
        }
        _ => board.history.write(Event::Broken { node: 0, what: format!("{name} says {line:?}") }),
    }
}

impl Drop for Foreign {
    /// It ends at the end of its input; what does not is killed.
    fn drop(&mut self) {
        *self.input.lock() = None;
        let mut child = self.child.lock();
        let until = Instant::now() + Duration::from_secs(2);
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(POLL);
        }
        let _ = child.kill();
        let _ = child.wait();
        if let Some(reader) = self.reader.lock().take() {
            let _ = reader.join();
        }
    }
}
