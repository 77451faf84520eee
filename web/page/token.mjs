/** The token of this tab. It comes behind '#' or is typed in; it leaves the address at once, and goes when the tab is closed. */

const KEY = "vgrpo:token"

/** Takes the token out of the address, if there is one, and returns the one that holds now. */
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1))
  if (given.has("token")) {
    keepToken(given.get("token"))
    given.delete("token")
    const rest = given.toString()
    history.replaceState(null, "", `${location.pathname}${location.search}${rest ? `#${rest}` : ""}`)
  }
  try {
    return sessionStorage.getItem(KEY) || null
  } catch {
    return given.get("token")
  }
}

/** Keeps a token for this tab; without one, forgets it. */
export function keepToken(token) {
  try {
    if (token) sessionStorage.setItem(KEY, token)
    else sessionStorage.removeItem(KEY)
  } catch {
    // A browser without storage asks again next time.
  }
}
