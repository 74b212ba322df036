"""Logging in to servers by OAuth 2.1, and what a login left: who asks whom for what, where it is kept, how it is renewed.

    records       what is known of an authorization server, of us there, and the tokens that it gave: values
    store         where that is kept: files for their owner only, whole or not at all, one program at a time
    web           the requests of all this: through the network's guard, bounded, no redirect with a secret
    challenges    what a server says with 401 and 403
    discovery     from a server's address to its authorization server, every address judged
    clients       who we are there: a client id given by hand, an address of our own, or one that is asked for
    grants        what the token endpoint is asked, and what it answers
    callback      the address on this machine that a browser comes back to
    peers         whose program is at the other end within this machine
    browser       how a page is opened
    pages         what a person is led to, and what may be brought back by hand
    scopes        which scopes are asked for, and what of them was granted
    question      what a person is asked to allow, and what the answer is worth
    replacing     a new login in the place of what is kept
    flow          a person's login, from the first question to the tokens
    errands       work that many want and one does
    custody       one login as this program knows it, and what other programs make of it
    credentials   what a server's requests carry, renewed once however many want it
    logins        all servers of a configuration: log in, log out, how each stands

The steps are those of the specification (2026-07-28, basic/authorization) and of the RFCs that it names: 6749, 7009, 7591,
7636, 8252, 8414, 8707, 9207, 9728. Why they are our own: docs/decisions/0017.
"""
