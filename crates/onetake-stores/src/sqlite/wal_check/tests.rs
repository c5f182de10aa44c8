//! Tests of the check, on logs that SQLite wrote.

use rusqlite::Connection;

use super::*;

const FRAME: usize = FRAME_HEAD + 4096;

/// A database in WAL mode that does not checkpoint by itself. It has a table of large rows, and
/// a table with one row on a page of its own.
struct Database {
    folder: tempfile::TempDir,
    connection: Connection,
}

impl Database {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let connection = Connection::open(folder.path().join("db")).unwrap();
        let database = Self { folder, connection };
        database.run("PRAGMA journal_mode = WAL");
        database.run("PRAGMA wal_autocheckpoint = 0");
        database.run("CREATE TABLE t (a BLOB)");
        database.run("CREATE TABLE one (a BLOB)");
        database.run("INSERT INTO one VALUES (zeroblob(3000))");
        database
    }

    fn run(&self, sql: &str) {
        self.connection.prepare(sql).unwrap().query([]).unwrap().next().map(drop).unwrap();
    }

    fn insert(&self, bytes: u32) {
        self.connection.execute("INSERT INTO t VALUES (randomblob(?1))", [bytes]).unwrap();
    }

    /// Writes one byte in the middle of the row with its own page, and a row of three pages.
    fn write(&self, byte: u8) {
        let row = [vec![0; 1500], vec![byte], vec![0; 1499]].concat();
        self.run("BEGIN");
        self.connection.execute("UPDATE one SET a = ?1", [row]).unwrap();
        self.insert(9_000);
        self.run("COMMIT");
    }

    fn log(&self) -> Vec<u8> {
        fs::read(self.folder.path().join("db-wal")).unwrap()
    }
}

/// The bytes of a log with some transactions.
fn log() -> Vec<u8> {
    let database = Database::new();
    for bytes in [10, 9_000, 300] {
        database.insert(bytes);
    }
    database.log()
}

/// The bytes of a log when its head was written again, over the frames of its earlier use.
fn restarted(old: &[u8], new: &[u8]) -> Vec<u8> {
    [&new[..HEAD], &old[HEAD..]].concat()
}

/// Takes each sector from one of several versions of a log, as a power loss may. One in `rate`
/// sectors may be older than the last version.
fn scatter(versions: &[Vec<u8>], rate: usize, random: &mut impl FnMut(usize) -> usize) -> Vec<u8> {
    let last = versions.len() - 1;
    let end = versions.iter().map(Vec::len).max().unwrap();
    let mut left = Vec::new();
    while left.len() < end {
        let version = &versions[if random(rate) == 0 { random(versions.len()) } else { last }];
        let to = end.min(left.len() + SECTOR);
        let sector = version.get(left.len()..to.min(version.len())).unwrap_or_default();
        left.extend_from_slice(sector);
        left.resize(to, 0);
    }
    left
}

/// Numbers below a limit (xorshift).
fn random() -> impl FnMut(usize) -> usize {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move |limit| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % limit
    }
}

#[test]
fn a_whole_log_and_a_cut_one_are_not_damaged() {
    let log = log();
    assert_eq!(find_damage(&log), None);
    for end in (0..log.len()).step_by(61) {
        let mut zeros = log.clone();
        zeros[end..].fill(0);
        // A torn head differs from a valid one by more than one bit.
        assert_eq!(find_damage(&zeros), None, "zeros from {end}");
        assert_eq!(find_damage(&log[..end]), None, "cut at {end}");
    }
}

#[test]
fn a_torn_transaction_is_not_damage() {
    let log = log();
    let frame = FRAME_HEAD + 4096;
    let count = (log.len() - HEAD) / frame;
    let commits: Vec<usize> =
        (0..count).filter(|at| number(&log, HEAD + at * frame + 4) != 0).collect();
    let [.., before, last] = commits[..] else { panic!("{commits:?}") };
    for torn in before + 1..=last {
        let at = HEAD + torn * frame;
        for range in [at..at + frame, at + 512..at + 1024, at..at + 512, at + 512..at + frame] {
            let mut changed = log.clone();
            changed[range.clone()].fill(0);
            if changed != log {
                assert_eq!(find_damage(&changed), None, "frame {torn}: {range:?}");
            }
        }
    }
}

#[test]
fn an_inverted_bit_is_damage() {
    let log = log();
    let places = (0..HEAD).chain((HEAD..log.len()).step_by(13));
    let heads = (HEAD..log.len()).step_by(FRAME_HEAD + 4096).flat_map(|at| at..at + FRAME_HEAD);
    for at in places.chain(heads) {
        let mut changed = log.clone();
        changed[at] ^= 1 << (at % 8);
        assert!(find_damage(&changed).is_some(), "byte {at}");
    }
}

#[test]
fn a_torn_transaction_over_an_earlier_use_of_the_log_is_not_damage() {
    let database = Database::new();
    database.run("PRAGMA wal_checkpoint(TRUNCATE)");
    database.write(0x34);
    let old = database.log();
    database.run("PRAGMA wal_checkpoint(FULL)");
    database.write(0x36);
    let new = database.log();
    assert_eq!(old.len(), new.len());
    let pages = (HEAD + FRAME_HEAD..new.len()).step_by(FRAME).map(|page| page..page + 4096);
    let changed = pages.map(|page| page.filter(|at| old[*at] != new[*at]).collect::<Vec<_>>());
    let changed = changed.filter(|bytes| bytes.len() == 1).flatten().collect::<Vec<_>>();
    // The first page has the size of the database.
    let [_, at] = changed[..] else { panic!("{changed:?}") };
    assert_eq!([old[at], new[at]], [0x34, 0x36]);
    let sector = |at: usize| at / SECTOR * SECTOR..(at / SECTOR + 1) * SECTOR;
    let lose = |log: &mut [u8], at| log[sector(at)].copy_from_slice(&old[sector(at)]);

    // The old byte differs from the new one in one bit. Other sectors are missing too.
    let mut one = new.clone();
    lose(&mut one, at);
    let frames = (HEAD..new.len()).step_by(FRAME).filter(|frame| *frame > at);
    for frame in frames.map(|frame| frame + 2000) {
        let mut torn = one.clone();
        lose(&mut torn, frame);
        if torn != one {
            assert_eq!(find_damage(&torn), None, "sector of {at} and sector of {frame}");
        }
    }
    // No other sector is missing: an acknowledged transaction could look like this.
    assert!(find_damage(&one).is_some());
}

#[test]
fn an_old_commit_field_in_a_torn_transaction_is_not_damage() {
    let database = Database::new();
    database.run("PRAGMA wal_checkpoint(TRUNCATE)");
    for _ in 0..60 {
        database.run("UPDATE one SET a = randomblob(3000)");
    }
    let old = database.log();
    database.run("PRAGMA wal_checkpoint(FULL)");
    database.insert(300_000);
    let new = database.log();
    // Of this frame, the commit field ends a sector.
    let at = HEAD + 41 * FRAME;
    assert_eq!((at + 8) % SECTOR, 0);
    assert!(number(&old, at + 4) != 0 && number(&new, at + 4) == 0);
    for range in [at..at + 8, at + 8 - SECTOR..at + 8] {
        let mut torn = new.clone();
        torn[range.clone()].copy_from_slice(&old[range.clone()]);
        assert_eq!(find_damage(&torn), None, "{range:?}");
    }
}

#[test]
fn a_torn_transaction_before_frames_that_were_rolled_back_is_not_damage() {
    let database = Database::new();
    database.run("PRAGMA cache_size = 5");
    database.run("BEGIN");
    (0..20).for_each(|_| database.insert(9_000));
    database.run("ROLLBACK");
    let before = database.log();
    database.insert(20_000);
    let log = database.log();
    assert_eq!(before.len(), log.len(), "the transaction is over the frames");
    let changed = (0..log.len()).filter(|at| log[*at] != before[*at]).collect::<Vec<_>>();
    let (first, last) = (changed[0], changed[changed.len() - 1]);
    for frame in (HEAD..last).step_by(FRAME).filter(|frame| *frame >= first / FRAME * FRAME) {
        let mut torn = log.clone();
        torn[frame + 1024..frame + 2048].copy_from_slice(&before[frame + 1024..frame + 2048]);
        assert_eq!(find_damage(&torn), None, "frame at {frame}");
    }
}

#[test]
fn scattered_sectors_of_the_last_transaction_are_not_damage() {
    let mut random = random();
    for is_restarted in [false, true] {
        let database = Database::new();
        // A transaction writes pages before its commit, and some of them again.
        database.run("PRAGMA cache_size = 5");
        (0..8).for_each(|_| database.insert(9_000));
        let mut versions = vec![database.log()];
        if is_restarted {
            database.run("PRAGMA wal_checkpoint(FULL)");
        }
        database.run("BEGIN");
        for _ in 0..4 {
            database.insert(30_000);
            database.run("UPDATE one SET a = randomblob(3000)");
            versions.push(database.log());
        }
        let is_rewritten = versions[3].iter().zip(&versions[2]).any(|(a, b)| a != b);
        assert!(is_rewritten, "no page was written again in its place");
        database.run("COMMIT");
        versions.push(database.log());
        if is_restarted {
            versions = versions.iter().map(|log| restarted(log, &database.log())).collect();
        }
        for case in 0..120 {
            let first = random(versions.len() - 1);
            let torn = scatter(&versions[first..], [1, 10, 100][case % 3], &mut random);
            assert_eq!(find_damage(&torn), None, "case {case}, restarted: {is_restarted}");
        }
        // The whole transaction survives, and one bit of it changes.
        let log = database.log();
        let is_commit =
            |at: &usize| log[at + 8..at + 16] == log[16..24] && number(&log, at + 4) != 0;
        let last = (HEAD..log.len()).step_by(FRAME).rfind(is_commit).unwrap();
        for at in (HEAD..last + FRAME).step_by(1999) {
            let mut changed = log.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(find_damage(&changed).is_some(), "byte {at}, restarted: {is_restarted}");
        }
    }
}
