use super::*;
use crate::support::{installation, key, name, provider, proxy, uid};
use proptest::prelude::*;

fn cluster() -> ClusterId {
    ClusterId::new("cluster-a")
}

fn here() -> Slot {
    Slot::new("101")
}

fn mark() -> Mark {
    Mark {
        installation: installation(),
        writer: Some(WriterId::new("w1")),
        provider: provider(),
        cluster: cluster(),
        slot: here(),
        uid: uid(),
        proxy: proxy(),
        attempt: 2,
        config: ConfigHash::of(b"x"),
        written: "2026-01-02T03:04:05Z".parse().unwrap(),
    }
}

/// The line as it stands on people's machines: reading it must stay possible for ever.
const GOLDEN: &str = "egress-proxies/v1 {\"installation\":\"lab\",\"writer\":\"w1\",\
    \"provider\":\"pve\",\"cluster\":\"cluster-a\",\"slot\":\"101\",\
    \"uid\":\"0c5c1b6e-6c5e-4b52-9d8a-0d5f2c1a7e11\",\"proxy\":\"shop/eu-1\",\"attempt\":2,\
    \"config\":\"2d711642b726b044\",\"written\":\"2026-01-02T03:04:05Z\"}";

#[test]
fn a_mark_is_written_as_one_line_that_never_changes() {
    assert_eq!(mark().to_string(), GOLDEN);
    assert_eq!(Mark::find(GOLDEN), Some(mark()));
}

#[test]
fn a_mark_without_a_writer_leaves_the_word_out() {
    let mark = Mark {
        writer: None,
        ..mark()
    };
    assert!(!mark.to_string().contains("writer"));
    assert_eq!(Mark::find(&mark.to_string()), Some(mark));
}

#[test]
fn a_mark_is_found_among_other_lines_and_between_white_space() {
    for text in [
        format!("made by hand\n{GOLDEN}\nsee the wiki"),
        format!("\r\n  {GOLDEN}\t\r\n"),
        GOLDEN.replacen("v1 {", "v1   {", 1),
        GOLDEN.replace(",\"", " , \""),
    ] {
        assert_eq!(Mark::find(&text), Some(mark()), "{text:?}");
    }
}

#[test]
fn a_later_version_may_add_words_that_this_one_does_not_read() {
    let text = GOLDEN.replace("{\"inst", "{\"colour\":\"red\",\"inst");
    assert_eq!(Mark::find(&text), Some(mark()));
}

#[test]
fn what_only_looks_like_a_mark_is_none() {
    for text in [
        "",
        "egress-proxies/v1",
        "egress-proxies/v1 {}",
        "egress-proxies/v1 {\"installation\":\"lab\"}",
        &GOLDEN.replace("v1 ", "v2 "),
        &GOLDEN.replace("v1 ", "v12 "),
        &GOLDEN.replace("egress", "Egress"),
        &format!("note: {GOLDEN}"),
        &GOLDEN.replace("\"attempt\":2,", ""),
        &GOLDEN.replace("\"attempt\":2", "\"attempt\":-2"),
        &GOLDEN.replace("\"lab\"", "\"Not A Label\""),
        &GOLDEN[..GOLDEN.len() - 1],
        &GOLDEN.replace(",\"slot\"", ",\n\"slot\""),
    ] {
        assert_eq!(Mark::find(text), None, "{text:?}");
    }
}

#[test]
fn the_first_mark_counts_even_if_it_is_broken() {
    let other = Mark {
        attempt: 7,
        ..mark()
    };
    assert_eq!(Mark::find(&format!("{GOLDEN}\n{other}")), Some(mark()));
    assert_eq!(Mark::find(&format!("egress-proxies/v1 {{\n{other}")), None);
}

proptest! {
    #[test]
    fn every_mark_is_read_back_as_it_was_written(
        slot in "\\PC{0,20}",
        cluster in any::<String>(),
        writer in proptest::option::of(any::<String>()),
        attempt in any::<u32>(),
        seconds in 0..4_000_000_000_i64,
        before in "[a-z \n]{0,20}",
    ) {
        let mark = Mark {
            slot: Slot::new(slot),
            cluster: ClusterId::new(cluster),
            writer: writer.map(WriterId::new),
            attempt,
            written: jiff::Timestamp::from_second(seconds).unwrap(),
            ..mark()
        };
        let line = mark.to_string();
        prop_assert_eq!(line.lines().count(), 1);
        prop_assert_eq!(Mark::find(&format!("{before}\n{line}\nend")), Some(mark));
    }
}

/// A machine at our recorded slot, under our name, with our mark; a row says what differs.
struct Seen {
    mark: Option<Mark>,
    name: Option<String>,
    slot: &'static str,
    cluster: &'static str,
    template: bool,
}

fn seen() -> Seen {
    let name = Some(key().name().to_owned());
    Seen {
        mark: Some(mark()),
        name,
        slot: "101",
        cluster: "cluster-a",
        template: false,
    }
}

fn judged(seen: &Seen, recorded: Option<&str>) -> Whose {
    let (slot, cluster) = (Slot::new(seen.slot), ClusterId::new(seen.cluster));
    let text = seen.mark.as_ref().map(|mark| format!("a note\n{mark}"));
    let identity = Identity {
        installation: installation(),
        writer: Some(WriterId::new("w1")),
    };
    let sighting = Sighting {
        slot: &slot,
        cluster: &cluster,
        name: seen.name.as_deref(),
        text: text.as_deref(),
        template: seen.template,
    };
    whose(
        &key(),
        &identity,
        &provider(),
        recorded.map(Slot::new).as_ref(),
        &sighting,
    )
}

fn strangers_mark() -> Mark {
    Mark {
        uid: name("someone-else"),
        ..mark()
    }
}

#[test]
fn whose_a_machine_is() {
    let ours = || Whose::Ours(Box::new(mark()));
    let foreign = |copied| Whose::Foreign { copied };
    let other_name = || Some("web-1".to_owned());
    let moved_mark = |slot| {
        Some(Mark {
            slot: Slot::new(slot),
            ..mark()
        })
    };
    let at = Some("101");
    let rows: Vec<(&str, Seen, Option<&str>, Whose)> = vec![
        ("our name, our mark, recorded", seen(), at, ours()),
        ("nothing recorded: the mark is enough", seen(), None, ours()),
        (
            "recorded elsewhere: the mark is enough",
            seen(),
            Some("102"),
            ours(),
        ),
        (
            "renamed",
            Seen {
                name: other_name(),
                ..seen()
            },
            at,
            ours(),
        ),
        (
            "nameless",
            Seen {
                name: None,
                ..seen()
            },
            at,
            ours(),
        ),
        (
            "our mark, by another installation",
            Seen {
                mark: Some(Mark {
                    installation: name("lab2"),
                    ..mark()
                }),
                ..seen()
            },
            at,
            Whose::NotOwned,
        ),
        (
            "our mark, by another state directory",
            Seen {
                mark: Some(Mark {
                    writer: Some(WriterId::new("w2")),
                    ..mark()
                }),
                ..seen()
            },
            at,
            Whose::NotOwned,
        ),
        (
            "our mark, without a writer",
            Seen {
                mark: Some(Mark {
                    writer: None,
                    ..mark()
                }),
                ..seen()
            },
            at,
            Whose::NotOwned,
        ),
        (
            "our mark, by another provider",
            Seen {
                mark: Some(Mark {
                    provider: name("pve2"),
                    ..mark()
                }),
                ..seen()
            },
            at,
            Whose::NotOwned,
        ),
        (
            "our name at our slot, mark lost",
            Seen {
                mark: None,
                ..seen()
            },
            at,
            Whose::NotOwned,
        ),
        (
            "our name at our slot, mark void: made for another slot",
            Seen {
                mark: moved_mark("999"),
                ..seen()
            },
            at,
            Whose::NotOwned,
        ),
        (
            "our name at our slot, mark void: made on another cluster",
            Seen {
                cluster: "cluster-b",
                ..seen()
            },
            at,
            Whose::NotOwned,
        ),
        (
            "our machine made into a template",
            Seen {
                template: true,
                ..seen()
            },
            at,
            Whose::NotOwned,
        ),
        (
            "our name next to someone's valid mark",
            Seen {
                mark: Some(strangers_mark()),
                ..seen()
            },
            None,
            Whose::NotOwned,
        ),
        (
            "our name at a slot that is not recorded, no mark",
            Seen {
                mark: None,
                ..seen()
            },
            Some("102"),
            foreign(false),
        ),
        (
            "our name, nothing recorded, no mark",
            Seen {
                mark: None,
                ..seen()
            },
            None,
            foreign(false),
        ),
        (
            "a copy of our machine, at another slot",
            Seen {
                slot: "102",
                name: other_name(),
                ..seen()
            },
            at,
            foreign(true),
        ),
        (
            "a copy of our machine that kept the name, at another slot",
            Seen {
                slot: "102",
                ..seen()
            },
            at,
            foreign(true),
        ),
        (
            "a template copied from our machine",
            Seen {
                template: true,
                slot: "102",
                name: other_name(),
                ..seen()
            },
            at,
            foreign(true),
        ),
        (
            "our slot, someone else's machine",
            Seen {
                mark: None,
                name: other_name(),
                ..seen()
            },
            at,
            foreign(false),
        ),
        (
            "our slot, another key's machine",
            Seen {
                mark: Some(strangers_mark()),
                name: other_name(),
                ..seen()
            },
            at,
            foreign(false),
        ),
        (
            "our slot, nameless and without a mark",
            Seen {
                mark: None,
                name: None,
                ..seen()
            },
            at,
            foreign(false),
        ),
    ];
    for (what, seen, recorded, expected) in rows {
        assert_eq!(judged(&seen, recorded), expected, "{what}");
    }
}

#[test]
fn a_writer_is_not_asked_for_where_there_is_none() {
    let identity = Identity {
        installation: installation(),
        writer: None,
    };
    let mark = Mark {
        writer: None,
        ..mark()
    };
    let (slot, cluster, text) = (here(), cluster(), mark.to_string());
    let sighting = Sighting {
        slot: &slot,
        cluster: &cluster,
        name: None,
        text: Some(&text),
        template: false,
    };
    let answer = whose(&key(), &identity, &provider(), None, &sighting);
    assert_eq!(answer, Whose::Ours(Box::new(mark)));
}

#[test]
fn a_machine_is_not_owned_by_a_proxy_that_its_mark_does_not_name() {
    let identity = Identity {
        installation: installation(),
        writer: Some(WriterId::new("w1")),
    };
    let other = ProxyId::new("elsewhere", "another").unwrap();
    let unknown = ProxyId::unknown(&key());
    for (asks, marked, is_ours) in [
        (proxy(), proxy(), true),
        (other, proxy(), false),
        // A person put the mark back by the line that we gave.
        (proxy(), unknown, true),
    ] {
        let mark = Mark {
            proxy: marked,
            ..mark()
        };
        let text = mark.to_string();
        let sighting = Sighting {
            slot: &here(),
            cluster: &cluster(),
            name: None,
            text: Some(&text),
            template: false,
        };
        let key = key().of(&asks);
        let answer = whose(&key, &identity, &provider(), Some(&here()), &sighting);
        let expected = if is_ours {
            Whose::Ours(Box::new(mark))
        } else {
            Whose::NotOwned
        };
        assert_eq!(answer, expected, "{asks}");
    }
}
