# A generalised linear model of one pooled table in R with an indicator of each site, as lines of: kind, name, value.
# Arguments: a CSV with the columns outcome, offset, site and the terms as numbers; the family; the names of the terms.
given <- commandArgs(trailingOnly = TRUE)
rows <- read.csv(given[1], check.names = FALSE)
terms <- given[-(1:2)]
design <- cbind(as.matrix(rows[, terms]), model.matrix(~ factor(site) - 1, rows))
fit <- glm(rows$outcome ~ design - 1, family = given[2], offset = as.numeric(rows$offset),
  control = glm.control(epsilon = 1e-15, maxit = 100))
table <- summary(fit)$coefficients
for (place in seq_along(terms)) for (kind in 1:3) {
  cat(c("coefficient", "error", "p")[kind], "\t", terms[place], "\t",
    sprintf("%.17g", table[place, c(1, 2, 4)[kind]]), "\n", sep = "")
}
