use super::*;

const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

#[test]
fn a_place_given_back_can_be_taken_again() {
    let places = Arc::new(Places::new(2, 2));
    let first = places.take(A).ok().unwrap();
    let _second = places.take(A).ok().unwrap();
    assert_eq!(places.take(B).err(), Some(Full::Total));
    drop(first);
    assert!(places.take(B).is_ok());
}

#[test]
fn one_client_cannot_take_the_places_of_others() {
    let places = Arc::new(Places::new(3, 1));
    let first = places.take(A).ok().unwrap();
    assert_eq!(places.take(A).err(), Some(Full::Client));
    let _other = places.take(B).ok().unwrap();
    drop(first);
    let _again = places.take(A).ok().unwrap();
    assert_eq!(
        places.taken.load(Relaxed),
        2,
        "a refused place is not counted"
    );
}

#[test]
fn clients_that_left_are_forgotten() {
    let places = Arc::new(Places::new(10, 5));
    drop((places.take(A), places.take(A), places.take(B)));
    assert!(
        places
            .per_client
            .as_ref()
            .unwrap()
            .lock()
            .unwrap()
            .is_empty()
    );
}
