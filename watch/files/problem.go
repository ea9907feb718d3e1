package files

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Problem is one thing that is wrong with one file or one object of it.
type Problem struct {
	// File is the path of the file, below the folder as it was given.
	File string `json:"file"`
	// Line in the file, from 1; 0 when the whole file is meant.
	Line int `json:"line,omitempty"`
	// Object is "Kind namespace/name" as far as known.
	Object string `json:"object,omitempty"`
	// Field is the path of the field, for example spec.networkConfig.cidr.
	Field string `json:"field,omitempty"`
	// Message says what is wrong and what to do.
	Message string `json:"message"`
}

// Error is "FILE:LINE: Kind namespace/name: field: message", without the parts that are empty.
func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		b.WriteString(":" + strconv.Itoa(p.Line))
	}
	for _, part := range []string{p.Object, p.Field, p.Message} {
		if part != "" {
			b.WriteString(": " + part)
		}
	}
	return b.String()
}

// same tells whether two problems are one, on whichever line it is now.
func (p Problem) same() Problem {
	p.Line = 0
	return p
}

func sortProblems(problems []Problem) {
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
}
