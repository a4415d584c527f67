package specserve

import (
	"net/http"
	"slices"
	"strings"

	"github.com/homestak/homestak-gitops/engine/source/serve"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// endpoint is a row of the table of what a server answers. To add one, add a row.
type endpoint struct {
	method string                 // GET is HEAD, too
	path   string                 // {identity} stands for the name of a node
	under  string                 // what its paths begin with, where it reads the rest itself; else ""
	body   int64                  // the largest body in bytes
	early  bool                   // it also responds before there is a commit
	signed bool                   // it limits clients with many failures itself
	access func(x *request) error // who may ask; required, so that it is not forgotten
	do     func(x *request) error
}

// Access checks. A handler that decides by more than one key, as by the rules of the site, checks its requests.
func anyone(*request) error           { return nil }
func checkedByHandler(*request) error { return nil }
func operators(x *request) error      { return x.keyed(x.view.Access.Operator, "operator") }

// readers admits operators, too: who may change something may see it.
func readers(x *request) error {
	if operators(x) == nil {
		return nil
	}
	return x.keyed(x.view.Access.Read, "read")
}

// identity is the placeholder for the name of a node in the path of an endpoint.
const identity = "{identity}"

func endpoints() []endpoint {
	return append(hooks(), []endpoint{
		{method: http.MethodGet, path: "/health", early: true, access: anyone, do: health},
		{method: http.MethodGet, path: "/specs", access: checkedByHandler, do: listSpecs},
		{method: http.MethodGet, path: "/spec/" + identity, access: checkedByHandler, do: serveSpec},
		{method: http.MethodGet, path: string(wire.AgentPath) + "{os}-{arch}", under: string(wire.AgentPath), access: checkedByHandler, do: serveAgent},
		{method: http.MethodGet, path: string(wire.ImagePath) + "{sha256}", under: string(wire.ImagePath), access: checkedByHandler, do: serveImage},
		{method: http.MethodGet, path: serve.RepositoryPrefix + "info/refs", access: checkedByHandler, do: serveRepository},
		{method: http.MethodPost, path: serve.RepositoryPrefix + "git-upload-pack", body: serve.MostRequest, access: checkedByHandler, do: serveRepository},
		{method: http.MethodGet, path: serve.RepositoryPrefix + "raw/{ref}/{path}", under: serve.RepositoryPrefix + "raw/", access: checkedByHandler, do: serveRepository},
		{method: http.MethodPost, path: "/report/" + identity, body: wire.MaxReport, access: checkedByHandler, do: takeReport},
		{method: http.MethodPost, path: "/receipts/" + identity, body: wire.MaxReport, access: checkedByHandler, do: takeReceipts},
		{method: http.MethodGet, path: "/wait/" + identity, access: checkedByHandler, do: wait},
		{method: http.MethodGet, path: "/queue/" + identity, access: checkedByHandler, do: serveQueue},
		{method: http.MethodPost, path: "/queue/" + identity, body: maxResult, access: checkedByHandler, do: takeResult},
		{method: http.MethodGet, path: "/config/" + identity, access: checkedByHandler, do: serveConfig},
		{method: http.MethodPost, path: joinEndpoint, body: maxJoin, access: checkedByHandler, do: join},
		{method: http.MethodGet, path: "/status", early: true, access: readers, do: status},
		{method: http.MethodGet, path: "/plan/" + identity, early: true, access: readers, do: planOf},
		{method: http.MethodGet, path: "/events", early: true, access: readers, do: events},
		{method: http.MethodGet, path: "/metrics", early: true, access: readers, do: metrics},
		{method: http.MethodGet, path: "/history", early: true, access: readers, do: askAgent},
		{method: http.MethodGet, path: "/why/{address}", under: "/why/", early: true, access: readers, do: askAgent},
		{method: http.MethodGet, path: "/operator", early: true, access: operators, do: mayOperate},
		{method: http.MethodPost, path: "/suspend", body: maxAsked, early: true, access: operators, do: askAgent},
		{method: http.MethodPost, path: "/resume", body: maxAsked, early: true, access: operators, do: askAgent},
		{method: http.MethodPost, path: "/reconcile", early: true, access: operators, do: reconcile},
		{method: http.MethodPost, path: "/verify", early: true, access: operators, do: verify},
		{method: http.MethodPost, path: "/reconcile/" + identity, early: true, access: operators, do: reconcileNode},
	}...)
}

// match finds the rows of a path, and the name of a node in it. It compares the path as it was sent:
// what is written in another way (%2F, a double slash, a dot) is another path.
func match(table []endpoint, path string) (rows []endpoint, node string) {
	for _, e := range table {
		if e.under != "" {
			if strings.HasPrefix(path, e.under) {
				rows = append(rows, e)
			}
			continue
		}
		prefix, named := strings.CutSuffix(e.path, identity)
		rest, begins := strings.CutPrefix(path, prefix)
		switch {
		case !begins, !named && rest != "", named && strings.Contains(rest, "/"):
		default:
			rows, node = append(rows, e), rest
		}
	}
	return rows, node
}

// allowed are the methods of rows of one path, for the header Allow.
func allowed(rows []endpoint) string {
	var out []string
	for _, e := range rows {
		out = append(out, e.method)
		if e.method == http.MethodGet {
			out = append(out, http.MethodHead)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// isName reports whether a text can be the name of a node: a DNS label that begins with a letter, as
// the site language has it.
func isName(s string) bool {
	letter := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
	if s == "" || len(s) > 63 || !letter(s[0]) || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !letter(c) && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
