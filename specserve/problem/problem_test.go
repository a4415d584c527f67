package problem_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/specserve/problem"
)

// The codes and their status are a contract with children of other versions.
func TestTable(t *testing.T) {
	var got []string
	for _, k := range problem.All() {
		require.NotEmpty(t, k.Message, k.Code)
		require.NotEmpty(t, k.Hint, k.Code)
		require.Equal(t, k, problem.Lookup(k.Code))
		got = append(got, fmt.Sprintf("%s %d", k.Code, k.Status))
	}
	require.Equal(t, []string{
		"E100 404", "E101 400", "E200 404", "E201 404", "E202 404", "E300 401", "E301 401", "E302 403", "E303 401",
		"E400 422", "E429 429", "E500 500", "E501 0",
	}, got)
	require.Equal(t, problem.Internal, problem.Lookup("E999").Code)
}

func TestError(t *testing.T) {
	err := error(problem.Errorf(problem.Connection, "reading: %w", io.ErrUnexpectedEOF))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, "E501: reading: unexpected EOF\ncheck that the server runs, that its address is right, and that no firewall is in between", err.Error())
	require.Equal(t, problem.Connection, problem.CodeOf(fmt.Errorf("fetching: %w", err)))
	require.Equal(t, problem.Internal, problem.CodeOf(errors.New("any")))
	require.Equal(t, http.StatusForbidden, (&problem.Error{Code: problem.NotYours}).Status())
	require.Equal(t, http.StatusInternalServerError, (&problem.Error{Code: problem.Connection}).Status(), "what only a client notices is no answer")
}

// What a server writes, a client reads.
func TestBody(t *testing.T) {
	for _, k := range problem.All() {
		e := &problem.Error{Code: k.Code}
		require.Equal(t, &problem.Error{Code: k.Code, Message: k.Message, Hint: k.Hint}, problem.Read(e.Status(), e.Body()))
	}
	require.JSONEq(t, `{"error":{"code":"E200","message":"no node \"web\"","hint":"check it"}}`,
		string((&problem.Error{Code: problem.NotFound, Message: `no node "web"`, Hint: "check it"}).Body()))
}

// An answer may come from anybody, such as a proxy.
func TestReadAnything(t *testing.T) {
	for _, body := range []string{"<html>no", "", `{"error":{"code":"E9"}}`, `{"error":[]}`, `{"error":{"message":"x"}}`} {
		require.Equal(t, &problem.Error{Code: problem.NoEndpoint, Message: "the server answered 404 Not Found"}, problem.Read(http.StatusNotFound, []byte(body)), body)
	}
	require.Equal(t, problem.NotYours, problem.Read(http.StatusNotFound, []byte(`{"error":{"code":"E302"}}`)).Code, "the document is more exact than the status")
	require.Equal(t, problem.Internal, problem.Read(http.StatusBadGateway, nil).Code)
	require.Equal(t, problem.Internal, problem.Read(http.StatusTeapot, nil).Code)
	long := problem.Read(404, (&problem.Error{Code: problem.NotFound, Message: "\x1b[31m" + strings.Repeat("ü", 400)}).Body())
	require.NotContains(t, long.Message, "\x1b")
	require.LessOrEqual(t, len(long.Message), 500+len("…"))
}
